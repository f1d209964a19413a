PRAGMA application_id = 1685271651;
CREATE TABLE models (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    name TEXT NOT NULL,
    architecture TEXT NOT NULL,
    quantisation TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    UNIQUE (path, name, architecture, quantisation, size_bytes, mtime_ns)
);
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    deleted_ms INTEGER,
    active_leaf INTEGER REFERENCES messages (id) ON DELETE SET NULL,
    forked_from INTEGER REFERENCES messages (id) ON DELETE SET NULL
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages (id) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    state TEXT NOT NULL CHECK (state IN ('complete', 'streaming', 'stopped', 'failed', 'crashed')),
    text TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    owner TEXT,
    model INTEGER REFERENCES models (id),
    support INTEGER REFERENCES models (id),
    drafter TEXT NOT NULL DEFAULT '',
    finish_reason TEXT,
    detail TEXT NOT NULL DEFAULT '',
    tail TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL DEFAULT 0,
    drafted INTEGER NOT NULL DEFAULT 0,
    judged INTEGER NOT NULL DEFAULT 0,
    accepted INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    reused_tokens INTEGER NOT NULL DEFAULT 0,
    prefill_ms REAL NOT NULL DEFAULT 0,
    decode_ms REAL NOT NULL DEFAULT 0,
    first_token_ms REAL NOT NULL DEFAULT 0,
    context_used INTEGER NOT NULL DEFAULT 0,
    seed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX messages_of_conversation ON messages (conversation);
CREATE INDEX messages_of_parent ON messages (parent);
CREATE INDEX messages_of_model ON messages (model);
CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming';
CREATE INDEX conversations_leaf ON conversations (active_leaf);
CREATE INDEX conversations_fork ON conversations (forked_from);
CREATE TABLE pieces (
    message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (message, number)
);
CREATE TABLE tunings (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    tokens BLOB NOT NULL,
    steps BLOB NOT NULL,
    judged BLOB NOT NULL,
    full BLOB NOT NULL,
    strings TEXT NOT NULL,
    UNIQUE (message, number)
);
INSERT INTO models VALUES (1, '/m/tiny.gguf', 'Tiny', 'qwen3', 'Q4_0', 4, 5);
INSERT INTO conversations (id, title, created_ms, updated_ms, pinned) VALUES (7, 'Old times', 1000, 2000, 1);
INSERT INTO messages (id, conversation, parent, role, state, text, created_ms, updated_ms)
    VALUES (20, 7, NULL, 'user', 'complete', 'What was there before?', 1000, 1000);
INSERT INTO messages (id, conversation, parent, role, state, text, created_ms, updated_ms, model, finish_reason)
    VALUES (21, 7, 20, 'assistant', 'complete', 'A café without search.', 1500, 2000, 1, 'stop');
INSERT INTO messages (id, conversation, parent, role, state, text, created_ms, updated_ms, model, owner)
    VALUES (22, 7, 20, 'assistant', 'streaming', '', 1500, 2000, 1, 'host|boot|space|1|2');
INSERT INTO pieces VALUES (22, 0, 'Half a '), (22, 1, 'sentence');
UPDATE conversations SET active_leaf = 21;
PRAGMA user_version = 1;

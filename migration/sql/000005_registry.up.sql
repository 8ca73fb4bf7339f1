-- The state that engines keep of an instance (RFC-72, 1.8), and who may change it. registryVersion rises with every
-- change, that of the lock included: changes are made by compare-and-set on it.
CREATE TABLE registry (
    registryId          VARCHAR(255)    NOT NULL PRIMARY KEY COMMENT 'the instance',
    registryVersion     BIGINT UNSIGNED NOT NULL,
    lockJobId           VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who may change it; empty: nobody has the lock',
    lockDurationSeconds INT UNSIGNED    NOT NULL DEFAULT 3600,
    lockUntilUtc        DATETIME(6)     NULL COMMENT 'by the clock of the database; NULL: nobody has the lock',
    document            LONGTEXT        NULL COMMENT 'JSON',
    updatedAtUtc        DATETIME(6)     NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

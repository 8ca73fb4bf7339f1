-- What the health engine last found out about the destination of each push consumer. No row: nobody has looked yet.
CREATE TABLE destination_health (
    consumerId INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'consumer.id',
    state      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'unknown, healthy, unhealthy',
    since      DATETIME(6)  NOT NULL COMMENT 'when it got into that state',
    checkedAt  DATETIME(6)  NOT NULL COMMENT 'when the run of the last probe began that part of its work',
    failures   INT UNSIGNED NOT NULL COMMENT 'probes that failed, in a row up to the last; 0: the last one succeeded',
    successes  INT UNSIGNED NOT NULL COMMENT 'the same of those that succeeded',
    lastClass  VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'why the last probe failed; empty: it succeeded',
    lastError  VARCHAR(512) NOT NULL,
    latencyMs  INT UNSIGNED NOT NULL COMMENT 'of the last probe',
    CONSTRAINT destinationHealthConsumerRef FOREIGN KEY (consumerId)
        REFERENCES consumer (id) ON UPDATE CASCADE ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

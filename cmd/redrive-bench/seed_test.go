package main

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

// seededStore returns a store with a channel, a producer and a consumer as a broker would have made them.
func seededStore(t *testing.T) (*sqlStore, *sql.DB) {
	t.Helper()
	config := storagetest.Config(t)
	config.ParseTime, config.Loc, config.InterpolateParams = true, time.UTC, true
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, statement := range []string{
		`INSERT INTO channel (channelId, name, tokenHash, changedAt, createdAt) VALUES ('other', 'o', '', NOW(), NOW()), ('c', 'c', '', NOW(), NOW())`,
		`INSERT INTO producer (producerId, name, tokenHash, changedAt, createdAt) VALUES ('p', 'p', '', NOW(), NOW())`,
		`INSERT INTO consumer (channelId, consumerId, name, type, callbackUrl, tokenSealed, changedAt, createdAt)
		 SELECT id, 'k', 'k', 'push', 'http://localhost', '', NOW(), NOW() FROM channel`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return &sqlStore{db: db}, db
}

func one(t *testing.T, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func TestSeedMakesWholeDeadJobs(t *testing.T) {
	t.Parallel()
	for name, atOnce := range map[string]bool{"in batches": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, db := seededStore(t)
			const n = 2*seedBatch + 17
			last := 0
			f := newFlow("d", n)
			err := store.Seed(t.Context(), seedSpec{
				Channel: "c", Consumer: "k", Producer: "p", Flow: f, PayloadBytes: 100, Retries: maxRetry,
				Spread: time.Hour, AtOnce: atOnce, Progress: func(done int) { last = done },
			})
			if err != nil {
				t.Fatal(err)
			}
			if f.acceptedCount() != n {
				t.Errorf("the flow has %d accepted messages, want %d", f.acceptedCount(), n)
			}
			if !atOnce && last != n {
				t.Errorf("the last progress was %d, want %d", last, n)
			}
			for query, want := range map[string]int64{
				`SELECT COUNT(*) FROM message m JOIN message_payload y ON y.messageId = m.id
				 JOIN job j ON j.messageId = m.id JOIN consumer k ON k.id = j.consumerId JOIN channel c ON c.id = k.channelId
				 WHERE c.channelId = 'c' AND m.channelId = c.id AND LENGTH(y.body) = 100 AND j.status = 1004
				 AND j.retryAttemptCount = 5 AND j.dueAt IS NULL AND j.dlqDelta = 1 AND m.dispatchedAt = m.receivedAt`: n,
				`SELECT COUNT(DISTINCT messageId) FROM message`:                                          n,
				`SELECT COUNT(DISTINCT id) FROM job`:                                                     n,
				`SELECT COUNT(*) FROM job WHERE statusChangedAt < UTC_TIMESTAMP(6) - INTERVAL 61 MINUTE`: 0,
				`SELECT COUNT(*) FROM job WHERE statusChangedAt > UTC_TIMESTAMP(6)`:                      0,
				`SELECT SUM(t.n) FROM tally t JOIN consumer k ON k.id = t.refId WHERE t.kind = 1`:        n,
				`SELECT SUM(t.n) FROM tally t JOIN channel c ON c.id = t.refId
				 WHERE t.kind = 3 AND c.channelId = 'c'`: n,
				`SELECT COUNT(*) FROM tally WHERE kind NOT IN (1, 3)`: 0,
			} {
				if got := one(t, db, query); got != want {
					t.Errorf("%s is %d, want %d", query, got, want)
				}
			}
			checkStore(t, store, n)
		})
	}
}

// checkStore holds the store's own readings to what was seeded.
func checkStore(t *testing.T, store *sqlStore, n int64) {
	t.Helper()
	if owed, err := store.Owed(t.Context()); err != nil || owed != n {
		t.Errorf("owed is %d, error %v, want %d", owed, err, n)
	}
	if dead, err := store.Rows(t.Context(), "c", "k", statusDead); err != nil || dead != n {
		t.Errorf("dead rows of c/k are %d, error %v, want %d", dead, err, n)
	}
	if dead, err := store.Rows(t.Context(), "other", "k", statusDead); err != nil || dead != 0 {
		t.Errorf("dead rows of other/k are %d, error %v, want none", dead, err)
	}
	if at, err := store.Clock(t.Context()); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("the database's clock is %v, error %v", at, err)
	}
}

func TestSeedAtOnceIsAllOrNothing(t *testing.T) {
	t.Parallel()
	store, db := seededStore(t)
	f := newFlow("d", seedBatch+10)
	// The last message's id is taken, so the second batch fails.
	if _, err := db.ExecContext(t.Context(), `
		INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt)
		SELECT 'abcdefghijkl', id, 1, ?, '', 0, NOW() FROM channel WHERE channelId = 'c'`, f.id(seedBatch+9)); err != nil {
		t.Fatal(err)
	}
	err := store.Seed(t.Context(), seedSpec{Channel: "c", Consumer: "k", Producer: "p", Flow: f, AtOnce: true})
	if err == nil {
		t.Error("a message id was taken and nobody minded")
	}
	if got := one(t, db, `SELECT COUNT(*) FROM job`); got != 0 {
		t.Errorf("%d jobs are left of a seeding that failed", got)
	}
	if f.acceptedCount() != 0 {
		t.Error("the flow counts messages that were never seeded")
	}
}

func TestSeedNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	store, _ := seededStore(t)
	for _, spec := range []seedSpec{
		{Channel: "c", Consumer: "nobody", Producer: "p"}, {Channel: "c", Consumer: "k", Producer: "nobody"},
	} {
		spec.Flow = newFlow("d", 1)
		if err := store.Seed(t.Context(), spec); err == nil {
			t.Errorf("seeding for %s and %s worked", spec.Consumer, spec.Producer)
		}
	}
}

func TestSeedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	store, _ := seededStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := store.Seed(ctx, seedSpec{
		Channel: "c", Consumer: "k", Producer: "p", Flow: newFlow("d", 100*seedBatch),
		Progress: func(int) { cancel() },
	})
	if err == nil {
		t.Error("a seeding that was cancelled says that it is complete")
	}
}

func TestServerMakesAndDropsDatabases(t *testing.T) {
	t.Parallel()
	s, err := openServer(t.Context(), storagetest.DSN(t, storagetest.Empty()), t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	described, err := s.Describe(t.Context())
	if err != nil || (described.Flavour != "MariaDB" && described.Flavour != "MySQL") || described.Private ||
		described.Settings["innodb_flush_log_at_trx_commit"] == "" {
		t.Errorf("the server is described as %+v, error %v", described, err)
	}
	dsn, db, drop, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if err := db.QueryRowContext(t.Context(), `SELECT DATABASE()`).Scan(&name); err != nil {
		t.Error(err)
	}
	if config, err := mysql.ParseDSN(dsn); err != nil || config.DBName != name || name == "" {
		t.Errorf("the DSN is of another database than %q: %v", name, err)
	}
	if err := drop(t.Context()); err != nil {
		t.Error(err)
	}
	if got := one(t, s.admin, `SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '`+name+`'`); got != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestSeedMakesABacklog(t *testing.T) {
	t.Parallel()
	store, db := seededStore(t)
	const n = seedBatch + 17
	err := store.Seed(t.Context(), seedSpec{
		Channel: "c", Consumer: "k", Producer: "p", Flow: newFlow("q", n), PayloadBytes: 100, Spread: time.Hour, Queued: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int64{
		`SELECT COUNT(*) FROM job j JOIN message_payload y ON y.messageId = j.messageId
		 WHERE j.status = 1001 AND j.dueAt IS NULL AND j.retryAttemptCount = 0 AND j.dlqDelta IS NULL AND LENGTH(y.body) = 100`: n,
		`SELECT COUNT(*) FROM engineDlq`:          0,
		`SELECT SUM(n) FROM tally WHERE kind = 1`: n,
		`SELECT SUM(n) FROM tally WHERE kind = 3`: n,
	} {
		if got := one(t, db, query); got != want {
			t.Errorf("%s is %d, want %d", query, got, want)
		}
	}
	if queued, err := store.Rows(t.Context(), "c", "k", statusQueued); err != nil || queued != n {
		t.Errorf("queued rows are %d, error %v, want %d", queued, err, n)
	}
}

func TestSeedMakesAHistory(t *testing.T) {
	t.Parallel()
	store, db := seededStore(t)
	now, err := store.Clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// What a broker that was just started makes.
	tomorrow := now.Truncate(day).Add(day)
	if _, err := db.ExecContext(t.Context(), `ALTER TABLE engineHistory REORGANIZE PARTITION pmax INTO (
		PARTITION pfirst VALUES LESS THAN ('`+tomorrow.Format(time.DateTime)+`'), PARTITION pmax VALUES LESS THAN (MAXVALUE))`); err != nil {
		t.Fatal(err)
	}
	spec := historySpec{Total: 2*seedBatch + 100, Until: now}
	for range 2 { // the partitions are there the second time
		if _, err := db.ExecContext(t.Context(), `DELETE FROM engineHistory`); err != nil {
			t.Fatal(err)
		}
		if err := store.SeedHistory(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := store.HistoryRows(t.Context()); err != nil || n != int64(spec.Total) {
		t.Errorf("%d entries, error %v, want %d", n, err, spec.Total)
	}
	for query, want := range map[string]int64{
		`SELECT COUNT(*) FROM engineHistory WHERE PartitionKey = 'delivery'`:                                                                                                int64(spec.Total) * 7 / 10,
		`SELECT COUNT(*) FROM engineHistory WHERE Status = 'Failed'`:                                                                                                        int64(spec.Total) / 10,
		`SELECT COUNT(*) FROM engineHistory WHERE Error IS NOT NULL`:                                                                                                        int64(spec.Total) / 10,
		`SELECT COUNT(DISTINCT CorrelationId) FROM engineHistory`:                                                                                                           int64(spec.Total) / historyCorrelated,
		`SELECT COUNT(*) FROM engineHistory WHERE RowKey NOT LIKE CONCAT(CorrelationId, '-', DATE_FORMAT(CreatedAtUtc, '%Y%m%dT%H%i%s.%fZ'), '-%')`:                         0,
		`SELECT COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'engineHistory' AND PARTITION_DESCRIPTION NOT IN ('MAXVALUE')`: 31,
	} {
		if got := one(t, db, query); got != want {
			t.Errorf("%s is %d, want %d", query, got, want)
		}
	}
}

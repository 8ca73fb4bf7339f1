package migration_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/migration"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

// empty returns a database without a schema, and a pool on it as a caller of this package has one.
func empty(t *testing.T) (*mysql.Config, *sql.DB) {
	t.Helper()
	cfg := storagetest.Config(t, storagetest.Empty())
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return cfg, db
}

func wantStatus(t *testing.T, db *sql.DB, want uint) {
	t.Helper()
	current, latest, dirty, err := migration.Status(t.Context(), db)
	if err != nil || dirty || current != want {
		t.Errorf("status: version %d of %d, dirty %t, error %v; want version %d", current, latest, dirty, err, want)
	}
}

func tables(t *testing.T, db *sql.DB) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_name <> 'schema_migrations'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func newest(t *testing.T) uint {
	t.Helper()
	latest, err := migration.Latest()
	if err != nil || latest == 0 {
		t.Fatalf("latest %d: %v", latest, err)
	}
	return latest
}

func TestUpDownUp(t *testing.T) {
	t.Parallel()
	cfg, db := empty(t)
	latest := newest(t)
	wantStatus(t, db, 0)
	behind, ok := errors.AsType[*migration.BehindError](migration.Check(t.Context(), db))
	if !ok || *behind != (migration.BehindError{Current: 0, Latest: latest}) || !strings.Contains(behind.Error(), "`redrive migrate up`") {
		t.Errorf("check of an empty database: %v", behind)
	}
	for range 2 { // the second finds nothing to do
		if err := migration.Up(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, db, latest)
	}
	if err := migration.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	full := tables(t, db)
	if full == 0 {
		t.Error("no tables after Up")
	}
	if cfg.MultiStatements {
		t.Error("Up changed its caller's configuration")
	}

	for step := range latest {
		if err := migration.Down(t.Context(), cfg, 1); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, db, latest-step-1)
	}
	if left := tables(t, db); left != 0 {
		t.Errorf("%d tables are left after the last Down", left)
	}
	if err := migration.Down(t.Context(), cfg, 1); err == nil {
		t.Error("Down with nothing to take back is no error")
	}
	if err := migration.Down(t.Context(), cfg, 0); err == nil {
		t.Error("Down of no steps is no error")
	}

	if err := migration.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if again := tables(t, db); again != full {
		t.Errorf("%d tables after Up, Down, Up; %d after the first Up", again, full)
	}
	if err := migration.Down(t.Context(), cfg, int(latest)+3); err == nil || !strings.Contains(err.Error(), "3 fewer") {
		t.Errorf("Down of too many: %v", err)
	}
}

func TestInstancesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	cfg, db := empty(t)
	var group sync.WaitGroup
	errs := make(chan error, 5)
	for range cap(errs) {
		group.Go(func() { errs <- migration.Up(t.Context(), cfg) })
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	wantStatus(t, db, newest(t))
	var rows int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM schema_migrations").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d versions (%v), want 1", rows, err)
	}
}

// A migration that fails in the middle is named, is not tried again blindly, and can be repaired.
func TestFailedMigration(t *testing.T) {
	t.Parallel()
	cfg, db := empty(t)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE consumer (id INT)"); err != nil { // in the way
		t.Fatal(err)
	}
	err := migration.Up(t.Context(), cfg)
	refused, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || refused.Number != 1050 || strings.Contains(err.Error(), "CREATE TABLE") {
		t.Fatalf("error %v, want the server's 1050 without the whole file", err)
	}
	for _, err := range []error{migration.Check(t.Context(), db), migration.Up(t.Context(), cfg)} {
		dirty, ok := errors.AsType[*migration.DirtyError](err)
		if !ok || dirty.Version != 1 || !strings.Contains(err.Error(), "`redrive migrate force -1`") {
			t.Errorf("error %v, want a DirtyError of version 1 that says what to run", err)
		}
	}
	if _, err := db.ExecContext(t.Context(), "DROP TABLE consumer, producer, channel"); err != nil {
		t.Fatal(err)
	}
	if err := migration.Force(t.Context(), cfg, -1); err != nil {
		t.Fatal(err)
	}
	if err := migration.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, db, newest(t))
	for _, version := range []int{-2, 0, int(newest(t)) + 1} {
		if err := migration.Force(t.Context(), cfg, version); err == nil {
			t.Errorf("Force takes version %d", version)
		}
	}
}

// While a newer program's schema is in place, an older one goes on (a rolling deployment).
func TestNewerSchemaIsFine(t *testing.T) {
	t.Parallel()
	cfg := storagetest.Config(t)
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "UPDATE schema_migrations SET version = 999"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(migration.Check(t.Context(), db), migration.Up(t.Context(), cfg)); err != nil {
		t.Error(err)
	}
	wantStatus(t, db, 999)
}

func TestEndedContext(t *testing.T) {
	t.Parallel()
	cfg, db := empty(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migration.Up(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("Up: %v, want that it was cancelled", err)
	}
	if n := tables(t, db); n != 0 {
		t.Errorf("%d tables were made", n)
	}
}

func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	cfg := storagetest.Config(t, storagetest.Empty())
	cfg.DBName += "_gone"
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, err := range []error{migration.Up(t.Context(), cfg), migration.Check(t.Context(), db)} {
		if refused, ok := errors.AsType[*mysql.MySQLError](err); !ok || refused.Number != 1049 {
			t.Errorf("error %v, want the server's 1049", err)
		}
	}
}

// TestDeadJobsGetTheirRecord migrates a database in which jobs are dead already, there and back.
func TestDeadJobsGetTheirRecord(t *testing.T) {
	t.Parallel()
	cfg, db := empty(t)
	if err := migration.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := migration.Down(t.Context(), cfg, int(newest(t))-1); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, db, 1)
	for _, statement := range []string{
		`INSERT INTO channel (id, channelId, name, tokenHash, changedAt, createdAt) VALUES (1, 'orders', 'o', 'x', NOW(6), NOW(6))`,
		`INSERT INTO consumer (id, channelId, consumerId, name, type, callbackUrl, tokenSealed, changedAt, createdAt) VALUES (1, 1, 'k', 'k', 'push', '', 'x', NOW(6), NOW(6))`,
		`INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt) VALUES (UNHEX('000000000000000000000001'), 1, 1, 'm1', '', 0, NOW(6))`,
		`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, precedence, retryAttemptCount, lastErrorClass, lastError) VALUES
			(UNHEX('4d88e15b60f486e428412dc9'), UNHEX('000000000000000000000001'), 1, 1004, '2026-02-03 04:05:06.000789', 0, 5, 'http_5xx', '503'),
			(UNHEX('4d88e15b60f486e428412dca'), UNHEX('000000000000000000000001'), 1, 1003, NOW(6), 0, 0, NULL, NULL)`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := migration.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var records int
	var key, rest string
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*), MAX(RowKey), MAX(CONCAT_WS('|', Engine, InstanceId, OriginalQueue, ErrorMessage, DequeueCount, Status, CorrelationId)) FROM engineDlq`).
		Scan(&records, &key, &rest); err != nil {
		t.Fatal(err)
	}
	// The xid is the example of its own documentation.
	if records != 1 || key != "9m4e2mr0ui3e8a215n4g-20260203T040506.000789Z" || rest != "delivery|k|orders|http_5xx: 503|6|Pending|m1" {
		t.Errorf("%d records: %s %s", records, key, rest)
	}
}

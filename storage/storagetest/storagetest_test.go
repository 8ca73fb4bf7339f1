package storagetest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/migration"
)

// leaking, in the environment of this test program, has TestLeaking leave a goroutine behind.
const leaking = "STORAGETEST_LEAKING"

// engineless, in the environment of this test program, says that no container engine is to be found.
const engineless = "STORAGETEST_ENGINELESS"

func TestMain(m *testing.M) { Main(m) }

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func names(t *testing.T, db *sql.DB, query string, args ...any) []string {
	t.Helper()
	values, err := column(t.Context(), db, query, args...)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func TestDatabasesAreApartAndDropped(t *testing.T) {
	t.Parallel()
	admin := open(t, DSN(t, Empty()))
	var made string
	t.Run("test", func(t *testing.T) {
		one, other := open(t, DSN(t)), open(t, DSN(t))
		if _, err := one.ExecContext(t.Context(), "INSERT INTO consumer_removal (consumerId, deletedAt) VALUES (1, NOW(6))"); err != nil {
			t.Fatal(err)
		}
		if rows := names(t, other, "SELECT consumerId FROM consumer_removal"); len(rows) != 0 {
			t.Errorf("one test's rows are in another's database: %v", rows)
		}
		made = names(t, one, "SELECT DATABASE()")[0]
	})
	if left := names(t, admin, "SELECT schema_name FROM information_schema.schemata WHERE schema_name = ?", made); len(left) != 0 {
		t.Errorf("database %v is left behind", left)
	}
}

// What a test gets must be what `redrive migrate up` makes, table by table.
func TestSchemaIsTheMigratedOne(t *testing.T) {
	t.Parallel()
	server, err := shared.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := Config(t)
	want := Config(t, Empty())
	if tables := names(t, open(t, want.FormatDSN()), "SHOW TABLES"); len(tables) != 0 {
		t.Fatalf("Empty gives tables %v", tables)
	}
	if err := migration.Up(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	gotSQL, err := server.dump(t.Context(), got.DBName)
	if err != nil {
		t.Fatal(err)
	}
	wantSQL, err := server.dump(t.Context(), want.DBName)
	if err != nil {
		t.Fatal(err)
	}
	// MySQL writes out the character set that SHOW CREATE TABLE has named, which is the table's own.
	const named = "CHARACTER SET utf8mb4 COLLATE "
	if strings.ReplaceAll(gotSQL, named, "COLLATE ") != strings.ReplaceAll(wantSQL, named, "COLLATE ") {
		t.Errorf("a test's schema:\n%s\na migrated one:\n%s", gotSQL, wantSQL)
	}
	if !strings.Contains(gotSQL, "INSERT INTO `schema_migrations`") || !strings.Contains(gotSQL, "INSERT INTO `catalog`") {
		t.Errorf("rows that the migration inserts are missing:\n%s", gotSQL)
	}
	if err := migration.Check(t.Context(), open(t, got.FormatDSN())); err != nil {
		t.Error(err)
	}
}

// Rows survive the copy whatever is in them.
func TestDumpKeepsValues(t *testing.T) {
	t.Parallel()
	from, to := Config(t, Empty()), Config(t, Empty())
	source := open(t, from.FormatDSN())
	for _, statement := range []string{
		"CREATE TABLE v (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, s VARCHAR(50), b VARBINARY(50), d DATETIME(6), g INT AS (LENGTH(s)) VIRTUAL) DEFAULT CHARSET=utf8mb4",
		`INSERT INTO v (s, b, d) VALUES ('it''s; \\ "ü"', X'00FF275C', '2026-01-02 03:04:05.678901'), (NULL, NULL, NULL), ('', '', '1970-01-01')`,
	} {
		if _, err := source.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	server, err := shared.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	statements, err := server.dump(t.Context(), from.DBName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.admin.ExecContext(t.Context(), "USE "+to.DBName+"; "+statements); err != nil {
		t.Fatal(err)
	}
	const all = "SELECT CONCAT_WS('|', id, QUOTE(s), COALESCE(HEX(b), 'NULL'), COALESCE(d, 'NULL'), COALESCE(g, 'NULL')) FROM v ORDER BY id"
	got, want := names(t, open(t, to.FormatDSN()), all), names(t, source, all)
	if len(want) != 3 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("copied rows %q, want %q", got, want)
	}
}

func TestServerCrashAndRestart(t *testing.T) {
	t.Parallel()
	server := Server(t, "--max-connections=33")
	db := open(t, DSN(t, On(server)))
	if got := names(t, db, "SELECT @@max_connections"); got[0] != "33" {
		t.Errorf("max_connections %s, want 33", got[0])
	}
	for round := range 2 {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO consumer_removal (consumerId, deletedAt) VALUES (?, NOW(6))", round); err != nil {
			t.Fatal(err)
		}
		server.Kill()
		if err := db.PingContext(t.Context()); err == nil {
			t.Fatal("a killed server answers")
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rows := names(t, db, "SELECT consumerId FROM consumer_removal"); len(rows) != round+1 {
			t.Errorf("%d rows after crash %d, want %d", len(rows), round+1, round+1)
		}
	}
	server.Kill() // and it may be dead at the end
}

func TestOrphansAreDropped(t *testing.T) {
	t.Parallel()
	server, err := shared.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := namePrefix + "1_orphan" + strings.ToLower(t.Name())
	if err := server.create(t.Context(), old, true); err != nil {
		t.Fatal(err)
	}
	db := open(t, DSN(t, Empty()))
	young := names(t, db, "SELECT DATABASE()")[0]
	if err := server.dropOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	const exists = "SELECT schema_name FROM information_schema.schemata WHERE schema_name = ?"
	if len(names(t, db, exists, old)) != 0 || len(names(t, db, exists, young)) != 1 {
		t.Error("the old database is there or the young one is gone")
	}
	for _, name := range []string{"redrive", "redrive_test_", "redrive_test_x", "redrive_test_-_y", "other_1_x"} {
		if at, ours := madeAt(name); ours {
			t.Errorf("%s is taken for a test database of %s", name, at)
		}
	}
}

// TestLeaking is for TestMainStopsTheServerAndFindsLeaks: run with the variable it uses a database and leaves a goroutine.
func TestLeaking(t *testing.T) {
	if os.Getenv(leaking) == "" {
		return
	}
	open(t, DSN(t))
	if os.Getenv(leaking) == "yes" {
		go func() { select {} }()
	}
}

func TestMainStopsTheServerAndFindsLeaks(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	for _, leak := range []string{"no", "yes"} {
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestLeaking$")
		cmd.Env = append(os.Environ(), leaking+"="+leak, "TMPDIR="+temp)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if failed := err != nil; failed != (leak == "yes") {
			t.Errorf("leak %s: %v\n%s", leak, err, out.String())
		}
		if found := strings.Contains(out.String(), "found unexpected goroutines"); found != (leak == "yes") {
			t.Errorf("leak %s: its goroutine is reported: %t\n%s", leak, found, out.String())
		}
		left, err := filepath.Glob(filepath.Join(temp, "*", "server-*"))
		if err != nil || len(left) != 0 {
			t.Errorf("servers left behind: %v %v", left, err)
		}
	}
}

// In a process of its own: which engine to use is found out once in each.
func TestNoContainerEngine(t *testing.T) {
	t.Parallel()
	if os.Getenv(engineless) != "" {
		if engineAnswers(t.Context()) {
			t.Error("an engine answers where nobody listens")
		}
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), engineless+"=yes", "DOCKER_HOST=tcp://127.0.0.1:1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestStripSkipLocked(t *testing.T) {
	t.Parallel()
	cfg := Config(t)
	cfg.InterpolateParams = true // without it the driver has every query with arguments prepared
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	plain, stripped := sql.OpenDB(connector), sql.OpenDB(StripSkipLocked(connector))
	defer plain.Close()
	defer stripped.Close()

	holder, err := plain.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if _, err := holder.ExecContext(t.Context(), "UPDATE catalog SET version = version + 1 WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	const claim = "SELECT id FROM catalog WHERE id = ? FOR UPDATE skip\n\tLOCKED"
	ask := func(db *sql.DB, prepare bool) error {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer tx.Rollback()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var id int
		if !prepare {
			return tx.QueryRowContext(ctx, claim, 1).Scan(&id)
		}
		statement, err := tx.PrepareContext(t.Context(), claim)
		if err != nil {
			return err
		}
		defer statement.Close()
		return statement.QueryRowContext(ctx, 1).Scan(&id)
	}
	for _, prepare := range []bool{false, true} {
		if err := ask(plain, prepare); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("plain, prepared %t: %v, want that it skips the row", prepare, err)
		}
		if err := ask(stripped, prepare); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stripped, prepared %t: %v, want that it waits for the row", prepare, err)
		}
	}
	if err := holder.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := stripped.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
	if err := ask(stripped, false); err != nil {
		t.Errorf("a free row: %v", err)
	}
	result, err := stripped.ExecContext(t.Context(), "UPDATE catalog SET version = ?", uint64(1)<<63) // only the driver's own checker takes it
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Errorf("%d rows affected (%v), want 1", n, err)
	}
}

func TestStripLeavesOtherWordsAlone(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"SELECT a FROM t FOR UPDATE SKIP LOCKED":             "SELECT a FROM t FOR UPDATE",
		"(SELECT 1 FOR UPDATE SKIP LOCKED) UNION (SELECT 2)": "(SELECT 1 FOR UPDATE) UNION (SELECT 2)",
		"SELECT skip, locked FROM t FOR UPDATE":              "SELECT skip, locked FROM t FOR UPDATE",
		"SELECT a FROM t ORDER BY skip lockedAt":             "SELECT a FROM t ORDER BY skip lockedAt",
	} {
		if got := strip(query); got != want {
			t.Errorf("%q became %q, want %q", query, got, want)
		}
	}
}

func BenchmarkDSN(b *testing.B) {
	for b.Loop() {
		DSN(b)
	}
}

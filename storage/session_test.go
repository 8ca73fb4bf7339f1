package storage_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// The server ends a session that says nothing for a minute, and its locks with it, whatever the DSN asks for.
func TestSilentSessionsEnd(t *testing.T) {
	t.Parallel()
	cfg, err := mysql.ParseDSN(storagetest.DSN(t, storagetest.Empty()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Params = map[string]string{"wait_timeout": "28800"}
	s, err := storage.Open(storage.Options{DSN: cfg.FormatDSN()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for range 3 { // connections at a time, each of them new
		conn, err := s.DB().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		var seconds int
		if err := conn.QueryRowContext(t.Context(), `SELECT @@wait_timeout`).Scan(&seconds); err != nil || seconds != 60 {
			t.Errorf("the server waits %d s for a silent session, error %v, want 60", seconds, err)
		}
	}
}

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func openStore(t *testing.T) *storage.Store {
	t.Helper()
	s, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func retention(t *testing.T, s *storage.Store, reg prometheus.Registerer) *engine.Retention {
	t.Helper()
	r, err := engine.NewRetention(engine.RetentionOptions{Store: s, Owner: "me", Days: 30, Registerer: reg, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	return r
}

// What was resolved or expired longer ago goes, pending ones and the rest stay; a dry run only tells.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	now, err := s.Now(t.Context())
	check(t, err)
	for i, days := range []int{10, 40, 50, 60} {
		at := now.Add(-time.Duration(days) * 24 * time.Hour)
		_, err := s.AddDeadLetter(t.Context(), storage.DeadLetter{Engine: "hmac", InstanceID: "i", OriginalQueue: "q", OriginalMessage: []byte(`{}`),
			ErrorMessage: "e", DequeueCount: 1, FirstFailureAt: at, LastFailureAt: at, Status: storage.DLQPending, CorrelationID: string(rune('a' + i))})
		check(t, err)
	}
	letters, _, err := s.ListDeadLetters(t.Context(), storage.DLQFilter{}, nil, 10)
	check(t, err)
	if len(letters) != 4 {
		t.Fatalf("%d dead letters", len(letters))
	}
	for _, d := range letters[2:] { // the two oldest
		_, err := s.ResolveDeadLetter(t.Context(), d.Engine, d.RowKey, storage.Resolution{Status: storage.DLQExpired, By: "me"})
		check(t, err)
	}
	reg := prometheus.NewRegistry()
	r := retention(t, s, reg)
	for _, dry := range []bool{true, true, false} {
		got, err := r.Run(t.Context(), dry)
		check(t, err)
		if got.DeadLetters != 2 {
			t.Errorf("dry run %t: %+v", dry, got)
		}
	}
	letters, _, err = s.ListDeadLetters(t.Context(), storage.DLQFilter{}, nil, 10)
	check(t, err)
	if len(letters) != 2 || letters[0].Status != storage.DLQPending || letters[1].Status != storage.DLQPending {
		t.Errorf("left: %+v", letters)
	}
	if n, err := testutil.GatherAndCount(reg, "redrive_retention_removed_total"); err != nil || n != 2 {
		t.Errorf("%d tables have their counter: %v", n, err)
	}
}

// Two instances do not remove at once, and one that waits for the other's lock is not a failure.
func TestRetentionIsGuarded(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	_, err := s.AcquireLock(t.Context(), "engine-retention", "somebody", time.Hour)
	check(t, err)
	if _, err := retention(t, s, nil).Run(t.Context(), false); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("got %v", err)
	}
	r := retention(t, s, nil)
	r.Start(t.Context())
	check(t, r.Stop(t.Context()))
}

func TestRetentionOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []engine.RetentionOptions{{}, {Store: openStore(t), Days: -1}, {Store: openStore(t), Days: 36501}} {
		if _, err := engine.NewRetention(o); err == nil {
			t.Errorf("%+v is allowed", o)
		}
	}
}

// scripted is a store whose steps fail as next says, a run at a time.
type scripted struct {
	engine.RetentionStore // nil: what is not below is not called
	next                  chan fault
	now                   fault
}

// fault is where a run fails, and with what; of the zero value it does not.
type fault struct{ hold, partitions, letters error }

func (s *scripted) Hold(ctx context.Context, _, _ string, _ time.Duration, fn func(context.Context) error) error {
	select {
	case s.now = <-s.next:
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.now.hold != nil {
		return s.now.hold
	}
	return fn(ctx)
}

func (s *scripted) EnsureHistoryPartitions(context.Context, int) error { return s.now.partitions }

func (s *scripted) PruneDeadLetters(context.Context, time.Duration, int, bool) (int64, bool, error) {
	return 0, false, s.now.letters
}

func (s *scripted) Now(context.Context) (time.Time, error) { return time.Unix(0, 0), nil }

func (s *scripted) DropHistoryPartitions(context.Context, time.Time, bool) ([]string, int64, error) {
	return nil, 0, nil
}

// A failure is logged when it begins and when it becomes another, not at each try; and so is its end.
func TestRetentionTellsOfTrouble(t *testing.T) {
	t.Parallel()
	denied := &mysql.MySQLError{Number: 1142, SQLState: [5]byte{'4', '2', '0', '0', '0'}, Message: "DROP command denied"}
	s := &scripted{next: make(chan fault)}
	var log bytes.Buffer // read when nobody writes
	r, err := engine.NewRetention(engine.RetentionOptions{Store: s, Owner: "me", Interval: time.Nanosecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	check(t, err)
	r.Start(t.Context())
	for _, f := range []fault{
		{},
		{hold: mysql.ErrInvalidConn},
		{hold: errors.Join(mysql.ErrInvalidConn, errors.New("from another port"))},
		{hold: storage.ErrLocked},
		{hold: mysql.ErrInvalidConn},
		{partitions: denied},
		{partitions: denied},
		{partitions: mysql.ErrInvalidConn},
		{letters: mysql.ErrInvalidConn},
		{hold: storage.ErrLocked}, // another instance's work is no recovery of this one
		{},
		{},
		{letters: denied},
	} {
		s.next <- f
	}
	s.next <- fault{hold: storage.ErrLocked} // taken when the run before it is over
	check(t, r.Stop(t.Context()))
	var got []string
	for line := range strings.Lines(log.String()) {
		_, line, _ = strings.Cut(line, "level=")
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{
		`error="invalid connection"`,
		`error="make the history's partitions: Error 1142 (42000): DROP command denied"`,
		`error="make the history's partitions: invalid connection"`,
		`error="remove dead letters: invalid connection"`,
		`INFO msg="removes again what is past its retention"`,
		`error="remove dead letters: Error 1142 (42000): DROP command denied"`,
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasSuffix(got[i], want[i]) {
			t.Fatalf("the log is\n%s\nit must be\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

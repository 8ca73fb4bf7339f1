package storage_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

const (
	patience    = 20 * time.Second // what a test waits for comes within milliseconds
	longLease   = time.Hour        // outlives every test
	ourMaxRetry = 5
)

// eachWay runs a test on the server's SKIP LOCKED, and without it, as TiDB would have it.
func eachWay(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("skip locked", func(t *testing.T) { t.Parallel(); test(t, newWorld(t, nil)) })
	t.Run("stripped", func(t *testing.T) { t.Parallel(); test(t, newWorld(t, storagetest.StripSkipLocked)) })
}

// world is a database of a test's own, with a producer and a channel in it.
type world struct {
	*storage.Store
	t        testing.TB
	ctx      context.Context
	dsn      string
	wrap     func(driver.Connector) driver.Connector
	instance storage.ID
	producer *storage.Producer
	channel  *storage.Channel
}

func newWorld(t testing.TB, wrap func(driver.Connector) driver.Connector) *world {
	t.Helper()
	return newWorldOn(t, storagetest.DSN(t), wrap)
}

func newWorldOn(t testing.TB, dsn string, wrap func(driver.Connector) driver.Connector) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), dsn: dsn, wrap: wrap, instance: storage.NewID()}
	w.Store = w.another()
	w.producer = must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "shop", Name: "Shop", Token: "p-token"}))
	w.channel = must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "orders", Name: "Orders", Token: "c-token"}))
	return w
}

// another opens one more Store on the same database, as another instance would.
func (w *world) another() *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, WrapConnector: w.wrap})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// must is for setting up what a test is not about.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) consumer(id string, kind storage.ConsumerType) *storage.Consumer {
	w.t.Helper()
	if kind == storage.TypeEngine {
		return must(w.PutEngineQueue(w.ctx, id, w.channel.ID))
	}
	return must(w.PutConsumer(w.ctx, storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: "Consumer " + id, Token: "k-token"},
		ChannelKey:     w.channel.Key, Type: kind, CallbackURL: "http://" + id + ".example/hook",
	}))
}

// tokens are one process's lease tokens: no two leases share one.
var tokens atomic.Uint64

func (w *world) lease(d time.Duration) storage.Lease {
	return storage.Lease{Owner: w.instance, Token: tokens.Add(1), For: d}
}

// message is one to accept, with a queued job for each consumer.
func (w *world) message(consumers ...*storage.Consumer) *storage.NewMessage {
	key := storage.NewID()
	m := &storage.NewMessage{
		Key: key, ChannelKey: w.channel.Key, ProducerKey: w.producer.Key, MessageID: key.String(),
		ContentType: "application/json", Headers: map[string]string{"X-Trace": "t1"}, Body: []byte(`{"n":1}`),
	}
	for _, k := range consumers {
		m.Jobs = append(m.Jobs, storage.NewJob{ID: storage.NewID(), ConsumerKey: k.Key})
	}
	return m
}

// queued stores n messages for the consumer and returns their jobs' ids.
func (w *world) queued(n int, k *storage.Consumer) []storage.ID {
	w.t.Helper()
	return w.accepted(n, k, storage.Lease{})
}

// accepted stores n messages for the consumer, under the lease where it has a token.
func (w *world) accepted(n int, k *storage.Consumer, lease storage.Lease) []storage.ID {
	w.t.Helper()
	msgs := make([]*storage.NewMessage, n)
	ids := make([]storage.ID, n)
	for i := range msgs {
		msgs[i] = w.message(k)
		msgs[i].Jobs[0].Leased = lease.Token != 0
		ids[i] = msgs[i].Jobs[0].ID
	}
	if n > 0 {
		w.ok(w.Accept(w.ctx, 0, lease, msgs))
	}
	return ids
}

// dead makes n jobs of the consumer that used up their retries and died.
func (w *world) dead(n int, k *storage.Consumer) []storage.ID {
	w.t.Helper()
	lease := w.lease(longLease)
	ids := w.accepted(n, k, lease)
	if n == 0 {
		return ids
	}
	w.exec(`UPDATE job SET retryAttemptCount = ? WHERE leaseToken = ?`, ourMaxRetry, lease.Token)
	outcomes := make([]storage.Outcome, n)
	for i, id := range ids {
		outcomes[i] = storage.Outcome{JobID: id, Token: lease.Token, ConsumerKey: k.Key, Verdict: storage.Die, ErrorClass: "http_5xx", Error: "503"}
	}
	if lost := must(w.Finish(w.ctx, 0, outcomes)); len(lost) != 0 {
		w.t.Fatalf("%d fresh leases were lost", len(lost))
	}
	return ids
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(query string, args ...any) int64 {
	w.t.Helper()
	res, err := w.DB().ExecContext(w.ctx, query, args...)
	w.ok(err)
	return must(res.RowsAffected())
}

func (w *world) number(query string, args ...any) (n int64) {
	w.t.Helper()
	w.ok(w.DB().QueryRowContext(w.ctx, query, args...).Scan(&n))
	return n
}

// row is everything the database knows of a job, to see what an operation changed.
type row struct {
	Status, RetryCount, NoRetry, IncrementalTimeout, Counted int
	ChangedAt                                                time.Time
	DueAt                                                    sql.NullTime
	Owner                                                    string
	Token                                                    uint64
	ErrorClass, Error                                        sql.NullString
}

func (w *world) row(id storage.ID) (r row) {
	w.t.Helper()
	var owner []byte
	w.ok(w.DB().QueryRowContext(w.ctx, `SELECT status, retryAttemptCount, noRetry, incrementalTimeout, dlqCounted, statusChangedAt, dueAt,
		leaseOwner, leaseToken, lastErrorClass, lastError FROM job WHERE id = ?`, id).
		Scan(&r.Status, &r.RetryCount, &r.NoRetry, &r.IncrementalTimeout, &r.Counted, &r.ChangedAt, &r.DueAt, &owner, &r.Token, &r.ErrorClass, &r.Error))
	r.Owner = string(owner)
	return r
}

// is fails the test unless every job has the status.
func (w *world) is(want storage.Status, ids ...storage.ID) {
	w.t.Helper()
	for _, id := range ids {
		if got := storage.Status(w.row(id).Status); got != want {
			w.t.Fatalf("job %s is %v, want %v", id, got, want)
		}
	}
}

// countAll folds until nothing is left to fold.
func (w *world) countAll() (sum storage.Folded) {
	w.t.Helper()
	for {
		f := must(w.CountBatch(w.ctx, 1000))
		sum.Read, sum.Counted, sum.Undone = sum.Read+f.Read, sum.Counted+f.Counted, sum.Undone+f.Undone
		if !f.More {
			return sum
		}
	}
}

// snapshotSQL holds the counts against the rows in one statement: consumers of whom anything is wrong.
const snapshotSQL = `SELECT c.consumerId, s.dead_count,
		COALESCE(SUM(j.dlqCounted), 0) AS counted,
		s.dead_count + COALESCE(SUM(j.dlqDelta), 0) AS shown,
		COALESCE(SUM(j.status = 1004), 0) AS dead
	FROM consumer c JOIN dlq_summary s ON s.consumerId = c.id LEFT JOIN job j ON j.consumerId = c.id
	GROUP BY c.id, c.consumerId, s.dead_count
	HAVING s.dead_count < 0 OR s.dead_count <> counted OR shown <> dead`

// wrongCounts is what is wrong with the dead counts of this instant; empty: nothing.
func wrongCounts(ctx context.Context, db *sql.DB) (string, error) {
	rows, err := db.QueryContext(ctx, snapshotSQL)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	var wrong string
	for rows.Next() {
		var id string
		var count, counted, shown, dead int64
		if err := rows.Scan(&id, &count, &counted, &shown, &dead); err != nil {
			return "", err
		}
		wrong += fmt.Sprintf("%s: dead_count %d, of which rows say %d; shown %d, dead %d. ", id, count, counted, shown, dead)
	}
	return wrong, rows.Err()
}

// recordsSQL are consumers whose dead jobs are not as many as their open dead letters (I10), in one statement.
const recordsSQL = `SELECT c.consumerId, (SELECT COUNT(*) FROM job j WHERE j.consumerId = c.id AND j.status = 1004) AS dead,
		(SELECT COUNT(*) FROM engineDlq d WHERE d.PartitionKey = IF(c.type = 'engine', c.consumerId, 'delivery') AND d.Status = 'Pending'
			AND IF(c.type = 'engine', d.JobId IS NOT NULL, d.InstanceId = c.consumerId) AND d.OriginalQueue = ch.channelId) AS open
	FROM consumer c JOIN channel ch ON ch.id = c.channelId HAVING dead <> open`

// wrongRecords is what is wrong with the dead letters of this instant; empty: nothing.
func wrongRecords(ctx context.Context, db *sql.DB) (string, error) {
	rows, err := db.QueryContext(ctx, recordsSQL)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	var wrong string
	for rows.Next() {
		var id string
		var dead, open int64
		if err := rows.Scan(&id, &dead, &open); err != nil {
			return "", err
		}
		wrong += fmt.Sprintf("%s: %d dead jobs, %d open dead letters. ", id, dead, open)
	}
	return wrong, rows.Err()
}

// wrongTallies is what is wrong with the counters of jobs and messages while nobody writes; empty: nothing.
func wrongTallies(ctx context.Context, db *sql.DB) (string, error) {
	var wrong string
	for _, q := range []struct{ name, sql string }{
		{"jobs", `SELECT COUNT(*) FROM consumer c WHERE
			(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 1 AND refId = c.id) <> (SELECT COUNT(*) FROM job WHERE consumerId = c.id)`},
		{"delivered jobs", `SELECT COUNT(*) FROM consumer c WHERE
			(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 2 AND refId = c.id) <> (SELECT COUNT(*) FROM job WHERE consumerId = c.id AND status = 1003)`},
		{"shelved jobs", `SELECT COUNT(*) FROM consumer c WHERE
			(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 4 AND refId = c.id) <> (SELECT COUNT(*) FROM job WHERE consumerId = c.id AND status = 1005)`},
		{"messages", `SELECT COUNT(*) FROM channel c WHERE
			(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 3 AND refId = c.id) <> (SELECT COUNT(*) FROM message WHERE channelId = c.id AND dispatchedAt IS NOT NULL)`},
	} {
		var n int
		if err := db.QueryRowContext(ctx, q.sql).Scan(&n); err != nil {
			return "", err
		}
		if n > 0 {
			wrong += fmt.Sprintf("the tally of %s is wrong for %d. ", q.name, n)
		}
	}
	return wrong, nil
}

// countsRight fails the test unless every counter agrees with the rows.
func (w *world) countsRight() {
	w.t.Helper()
	for _, check := range []func(context.Context, *sql.DB) (string, error){wrongCounts, wrongTallies} {
		if wrong := must(check(w.ctx, w.DB())); wrong != "" {
			w.t.Fatal(wrong)
		}
	}
}

// shown is the number of dead jobs that /dlq-status would show for the consumer.
func (w *world) shown(k *storage.Consumer) int64 {
	w.t.Helper()
	for _, c := range must(w.DeadCounts(w.ctx)).Consumers {
		if c.ConsumerKey == k.Key {
			return c.Dead
		}
	}
	w.t.Fatalf("consumer %s is not in the dead counts", k.ID)
	return 0
}

// eventually polls a condition until it holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, patience)
		case <-tick.C:
		}
	}
}

func text(s string) sql.NullString { return sql.NullString{String: s, Valid: true} }

package broker_test

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// unreliable gives a view of the database on which fault decides about each statement.
func (w *world) unreliable(fault func(query string) error) *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: discard(), WrapConnector: func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) { return query, fault(query) })
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// queue stores messages whose jobs wait in the backlog.
func (w *world) queue(k *storage.Consumer, n int) {
	w.t.Helper()
	msgs := make([]*storage.NewMessage, n)
	for i := range msgs {
		key := storage.NewID()
		msgs[i] = &storage.NewMessage{Key: key, ChannelKey: w.channel.Key, ProducerKey: w.producer.Key, MessageID: key.String(),
			ContentType: "text/plain", Jobs: []storage.NewJob{{ID: storage.NewID(), ConsumerKey: k.Key}}}
	}
	if err := w.store.Accept(w.ctx, 0, storage.Lease{}, msgs); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) number(query string) (n int64) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.ctx, query).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// A claim that fails after its commit costs neither an attempt nor the time of a lease.
func TestFailedClaimIsUndone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	k := w.consumer("k", s.URL, storage.TypePush)
	var failures atomic.Int32
	o := w.fast()
	o.MaxRetry = 0 // one lost attempt and it would be dead
	o.Store = w.unreliable(func(query string) error {
		if strings.Contains(query, "SELECT j.id, j.consumerId, j.retryAttemptCount") && failures.Add(1) <= 3 {
			return errors.New("the answer was lost")
		}
		return nil
	})
	w.queue(k, 20)
	w.start(o)
	w.waitJobs(k, storage.StatusDelivered, 20)
	if n := w.number(`SELECT COALESCE(SUM(retryAttemptCount), 0) FROM job`); n != 0 || failures.Load() < 4 {
		t.Errorf("%d retries counted, %d loads", n, failures.Load())
	}
}

// A broadcast whose COMMIT was answered by nobody is a failure to its client, and no attempt of its jobs.
func TestUnknownCommitIsHandedBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	k := w.consumer("k", s.URL, storage.TypePush)
	var accepting atomic.Bool // from the broadcast's first statement to its answer
	o := w.fast()
	o.MaxRetry = 0
	o.Store = w.unreliable(func(query string) error {
		switch {
		case strings.HasPrefix(query, "INSERT INTO message "):
			accepting.Store(true)
		case query == "COMMIT" && accepting.Load():
			return mysql.ErrInvalidConn
		}
		return nil
	})
	b := w.start(o)
	_, err := b.Accept(w.ctx, broker.Broadcast{Channel: w.channel, Producer: w.producer, MessageID: "m", ContentType: "text/plain"})
	accepting.Store(false)
	if !storage.IsUnavailable(err) || !storage.IsCommitUnknown(err) {
		t.Fatalf("error %v", err)
	}
	w.waitJobs(k, storage.StatusDelivered, 1)
	if n := w.number(`SELECT SUM(retryAttemptCount) FROM job`); n != 0 {
		t.Errorf("%d retries counted", n)
	}
}

// One outcome that the server refuses does not take the others of its batch with it.
func TestRefusedOutcomeIsFoundOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var bad atomic.Bool
	var together sync.WaitGroup // their outcomes come at once, and so in few batches
	together.Add(31)
	s := newSink(t, func(r *http.Request) int {
		if r.Header.Get("X-Broker-Message-ID") != "bad" || bad.CompareAndSwap(false, true) {
			together.Done()
			together.Wait()
		}
		if r.Header.Get("X-Broker-Message-ID") == "bad" {
			return http.StatusTeapot
		}
		return http.StatusOK
	})
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.Store = w.unreliable(func(query string) error {
		if strings.Contains(query, "UPDATE job FORCE INDEX (PRIMARY) SET status = 1001, retryAttemptCount") {
			return &mysql.MySQLError{Number: 1406, SQLState: [5]byte{'2', '2', '0', '0', '1'}, Message: "too long"}
		}
		return nil
	})
	w.queue(k, 30)
	b := w.start(o)
	w.broadcast(b, broker.Broadcast{MessageID: "bad"})
	w.waitJobs(k, storage.StatusDelivered, 30)
}

// A lease that ran out while the database was away is left alone for a while after it: its outcome, which could not be
// written in time, comes first. A job whose instance is lost is taken back nonetheless, a little later.
func TestAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var out atomic.Bool
	var unread, polls atomic.Int32 // statements of polls: in the outage, and after it
	s := newSink(t, func(*http.Request) int { out.Store(true); return http.StatusOK })
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.MaxRetry = 0 // one lost attempt and it would be dead
	o.DeliveryTimeout, o.RationalDelay = time.Second, time.Millisecond
	o.SchedulerInterval = time.Hour // so that of its loops poll alone reads the catalog
	o.Store = w.unreliable(func(query string) error {
		poll := strings.HasPrefix(query, "SELECT c.id, EXISTS")
		switch {
		case out.Load():
			if poll || strings.Contains(query, "FROM catalog") {
				unread.Add(1)
			}
			return mysql.ErrInvalidConn
		case unread.Load() == 0:
		case poll:
			polls.Add(1)
		case strings.Contains(query, "SET status = 1003") && polls.Load() < 3:
			return mysql.ErrInvalidConn // two polls end before the outcome can be written
		}
		return nil
	})
	w.queue(k, 1)
	w.start(o)
	s.wait(t, 1)
	lost := &storage.NewMessage{Key: storage.NewID(), ChannelKey: w.channel.Key, ProducerKey: w.producer.Key, MessageID: "lost", ContentType: "text/plain",
		Jobs: []storage.NewJob{{ID: storage.NewID(), ConsumerKey: k.Key, Leased: true}}}
	if err := w.store.Accept(w.ctx, 0, storage.Lease{Owner: storage.NewID(), Token: 1, For: time.Millisecond}, []*storage.NewMessage{lost}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		return unread.Load() > 0 && w.number(`SELECT COUNT(*) FROM job WHERE status = 1002 AND dueAt < NOW(6)`) == 2
	})
	out.Store(false)
	w.waitJobs(k, storage.StatusDelivered, 1)
	w.waitJobs(k, storage.StatusDead, 1)
	if n := w.number(`SELECT COUNT(*) FROM job j JOIN message m ON m.id = j.messageId WHERE m.messageId = 'lost' AND j.status = 1004 AND j.lastErrorClass = 'lease_lost'`); n != 1 {
		t.Error("another job than the lost one is dead")
	}
}

// An outage is told of when it begins and when it is over, however many consumers there are and however long it lasts.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	var claims, writes atomic.Int32
	o := w.fast()
	o.Store = w.unreliable(func(query string) error {
		claim := strings.Contains(query, "dueAt <= NOW(6)") && strings.Contains(query, "SKIP LOCKED") && claims.Add(1) <= 15
		write := strings.Contains(query, "SET status = 1003") && writes.Add(1) == 1
		if claim || write {
			return &mysql.MySQLError{Number: 1226, SQLState: [5]byte([]byte("42000")), Message: "too many connections of this user"}
		}
		return nil
	})
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	consumers := make([]*storage.Consumer, 5)
	for i := range consumers {
		consumers[i] = w.consumer(fmt.Sprint("k", i), s.URL, storage.TypePush)
		w.queue(consumers[i], 1)
	}
	b := w.start(o)
	for _, k := range consumers {
		w.waitJobs(k, storage.StatusDelivered, 1)
	}
	if err := b.Stop(w.ctx); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"cannot claim jobs", "again able to claim jobs", "outcomes could not be written, trying again", "outcomes written after all"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%q: %d times", line, n)
		}
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

// Jobs of one consumer that somebody else has locked hold up nobody's outcomes but their own.
func TestLockedJobsHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer := make(chan struct{})
	held := newSink(t, hang(answer))
	free := newSink(t, ok)
	k := w.consumer("k", held.URL, storage.TypePush)
	o := w.fast()
	o.DeliveryTimeout = time.Minute
	var writes atomic.Int32
	o.Store = w.unreliable(func(query string) error {
		if strings.Contains(query, "SET status = 1003") {
			writes.Add(1)
		}
		return nil
	})
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	b := w.start(o)
	w.queue(k, 2)
	held.wait(t, 2)
	w.waitJobs(k, storage.StatusInflight, 2)

	somebody, err := w.db.BeginTx(w.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = somebody.Rollback() }()
	if _, err := somebody.ExecContext(w.ctx, `SELECT id FROM job WHERE consumerId = ? FOR UPDATE`, k.Key); err != nil {
		t.Fatal(err)
	}
	answer <- struct{}{} // each of the two lanes that write deliveries gets one
	eventually(t, func() bool { return writes.Load() > 0 })
	answer <- struct{}{}
	other := w.consumer("other", free.URL, storage.TypePush)
	w.queue(other, 10)
	w.waitJobs(other, storage.StatusDelivered, 10)
	if n := w.jobs(k)[storage.StatusInflight]; n != 2 {
		t.Errorf("%d jobs in flight under somebody's lock", n)
	}

	if err := somebody.Rollback(); err != nil {
		t.Fatal(err)
	}
	w.waitJobs(k, storage.StatusDelivered, 2)
	if n := len(held.seen()); n != 2 {
		t.Errorf("%d attempts at 2 jobs", n)
	}
	if err := b.Stop(w.ctx); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"another transaction has their jobs locked", "no outcome waits for another transaction any more"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%q: %d times\n%s", line, n, log.String())
		}
	}
}

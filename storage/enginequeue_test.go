package storage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const rotationQueue = "hmac-rotation-queue"

// engine makes the queue of an engine and returns its consumer.
func (w *world) engine(name, queue string) *storage.Consumer {
	w.t.Helper()
	return must(w.PutEngineQueue(w.ctx, name, queue))
}

// enqueued stores a message in the queue and claims its job.
func (w *world) enqueued(k *storage.Consumer, messageID string) storage.ClaimedJob {
	w.t.Helper()
	_, jobs, err := w.Enqueue(w.ctx, storage.Enqueued{Queue: k.ChannelID, MessageID: messageID, Body: json.RawMessage(`{"n":1}`)})
	w.ok(err)
	claimed := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 1))
	if len(claimed) != 1 || claimed[0].ID != jobs[0].ID {
		w.t.Fatalf("claimed %v of %v", claimedIDs(claimed), jobs)
	}
	return claimed[0]
}

func TestPutEngineQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	before := must(w.Catalog(w.ctx)).Version()
	var wg sync.WaitGroup
	made := make([]*storage.Consumer, 8)
	for i := range made {
		s := w.another()
		wg.Go(func() {
			var err error
			if made[i], err = s.PutEngineQueue(w.ctx, "hmac", rotationQueue); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cat := must(w.Catalog(w.ctx))
	ch, _ := cat.Channel(rotationQueue)
	k, _ := cat.Consumer(ch, "hmac")
	for _, m := range made {
		if m == nil || m.Key != k.Key || m.ChannelKey != ch.Key || m.ChannelID != rotationQueue || !m.ChangedAt.Equal(k.ChangedAt) {
			t.Errorf("%+v, want %+v", m, k)
		}
	}
	if k.Type != storage.TypeEngine || k.Name != "hmac" || k.CallbackURL != "" || k.Sealed || len(k.Token) != 26 || ch.Name != rotationQueue || k.Engine() != "hmac" {
		t.Errorf("%+v of %+v", k, ch)
	}
	if cat.Version() != before+1 {
		t.Errorf("the catalog's version rose from %d to %d", before, cat.Version())
	}
	if w.shown(k) != 0 {
		t.Error("it is not in the dead counts")
	}
	w.engine("tls", "orders") // a channel that is there stays as it is
	if orders, _ := must(w.Catalog(w.ctx)).Channel("orders"); !orders.TokenMatches("c-token") || orders.Name != "Orders" || !orders.ChangedAt.Equal(w.channel.ChangedAt) {
		t.Errorf("%+v", orders)
	}

	w.consumer("shop", storage.TypePull)
	after := must(w.Catalog(w.ctx)).Version()
	if _, err := w.PutEngineQueue(w.ctx, "shop", "orders"); err == nil || !strings.Contains(err.Error(), `pull consumer "shop"`) {
		t.Error(err)
	}
	for _, name := range []string{"", "a b", "ä", strings.Repeat("a", 65)} {
		if _, err := w.PutEngineQueue(w.ctx, name, rotationQueue); err == nil {
			t.Errorf("%q is taken for an engine's name", name)
		}
	}
	if _, err := w.PutEngineQueue(w.ctx, "hmac", ""); err == nil {
		t.Error("an engine has a queue without a name")
	}
	if _, err := w.PutEngineQueue(w.ctx, storage.EngineDelivery, rotationQueue); !errors.Is(err, storage.ErrReservedEngine) {
		t.Error(err)
	}
	put := storage.PutConsumer{PutStakeholder: storage.PutStakeholder{ID: "hmac", Name: "H", Token: "t", IfUnmodifiedSince: &k.ChangedAt},
		ChannelKey: ch.Key, Type: storage.TypePush, CallbackURL: "http://x.example/"}
	if _, err := w.PutConsumer(w.ctx, put); !errors.Is(err, storage.ErrEngineConsumer) {
		t.Error(err)
	}
	put.ID, put.Type = "other", storage.TypeEngine
	if _, err := w.PutConsumer(w.ctx, put); !errors.Is(err, storage.ErrEngineConsumer) {
		t.Error(err)
	}
	if v := must(w.Catalog(w.ctx)).Version(); v != after {
		t.Errorf("refusals raised the catalog's version from %d to %d", after, v)
	}
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.engine("hmac", rotationQueue), w.engine("audit", rotationQueue)
	e := storage.Enqueued{Queue: rotationQueue, MessageID: "m1", Body: json.RawMessage(`{"tenant":"t1"}`)}
	key, jobs, err := w.Enqueue(w.ctx, e)
	w.ok(err)
	if len(jobs) != 2 || jobs[0].ConsumerKey != k.Key || jobs[1].ConsumerKey != other.Key {
		t.Fatalf("%+v", jobs)
	}
	m, stored, err := w.Message(w.ctx, k.ChannelKey, "m1")
	if err != nil || m.Key != key || m.ProducerKey != 0 || m.ContentType != "application/json" || string(m.Body) != `{"tenant":"t1"}` || m.DispatchedAt == nil || len(stored) != 2 {
		t.Errorf("%+v, %+v, %v", m, stored, err)
	}
	w.is(storage.StatusQueued, jobs[0].ID, jobs[1].ID)
	if _, _, err := w.Enqueue(w.ctx, e); !errors.Is(err, storage.ErrDuplicate) {
		t.Error(err)
	}
	e.MessageID = ""
	if key, _, err = w.Enqueue(w.ctx, e); err != nil {
		t.Error(err)
	} else if _, _, err := w.Message(w.ctx, k.ChannelKey, key.String()); err != nil {
		t.Error(err)
	}
	e.MessageID, e.Body = "m2", json.RawMessage(`{`)
	if _, _, err := w.Enqueue(w.ctx, e); err == nil {
		t.Error("a body that is not JSON was taken")
	}
	e.Queue, e.Body = "nowhere", nil
	if _, _, err := w.Enqueue(w.ctx, e); !errors.Is(err, storage.ErrNoQueue) {
		t.Error(err)
	}
	if n := w.number(`SELECT COUNT(*) FROM message`); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	if n := w.number(`SELECT COUNT(*) FROM job`); n != 4 {
		t.Errorf("%d jobs, want 4", n)
	}
	w.countsRight()
}

// die has the job's last attempt fail.
func (w *world) die(k *storage.Consumer, j storage.ClaimedJob, about *storage.Subject) {
	w.t.Helper()
	if lost := w.finish(storage.Outcome{JobID: j.ID, Token: j.Token, ConsumerKey: k.Key, Verdict: storage.Die, ErrorClass: "engine", Error: "no key", Subject: about}); len(lost) != 0 {
		w.t.Fatal("the lease was lost")
	}
}

// pending are the open dead letters of an engine.
func (w *world) pending(engine string) []storage.DeadLetter {
	w.t.Helper()
	more := false
	return must2(w.ListDeadLetters(w.ctx, storage.DLQFilter{Engine: engine, Status: storage.DLQPending}, nil, 100))(&more)
}

// TestRecordOfAnEnginesDeath sees what the record says, and that one of another kind in the same transaction says what it
// always did.
func TestRecordOfAnEnginesDeath(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, push := w.engine("hmac", rotationQueue), w.consumer("k", storage.TypePush)
		about, plain := w.enqueued(k, "m1"), w.enqueued(k, "m2")
		lease := w.lease(longLease)
		delivery := w.accepted(1, push, lease)[0]
		long := strings.Repeat("é", 300)
		w.finish(
			storage.Outcome{JobID: about.ID, Token: about.Token, ConsumerKey: k.Key, Verdict: storage.Die, ErrorClass: "engine", Error: "no key",
				Subject: &storage.Subject{InstanceID: "hmac-publisher", CorrelationID: long}},
			storage.Outcome{JobID: plain.ID, Token: plain.Token, ConsumerKey: k.Key, Verdict: storage.Die, ErrorClass: "engine"},
			storage.Outcome{JobID: delivery, Token: lease.Token, ConsumerKey: push.Key, Verdict: storage.Die, ErrorClass: "http_5xx",
				Subject: &storage.Subject{InstanceID: "not of a delivery", CorrelationID: "nor this"}})
		for _, want := range []storage.DeadLetter{
			{Engine: "hmac", InstanceID: "hmac-publisher", OriginalQueue: rotationQueue, ErrorMessage: "engine: no key", CorrelationID: long[:2*255], Job: about.ID},
			{Engine: "hmac", InstanceID: "hmac", OriginalQueue: rotationQueue, ErrorMessage: "engine: ", CorrelationID: "m2", Job: plain.ID},
			{Engine: "delivery", InstanceID: "k", OriginalQueue: "orders", ErrorMessage: "http_5xx: ", CorrelationID: must(w.Job(w.ctx, delivery)).MessageID, Job: delivery},
		} {
			died := w.row(want.Job).ChangedAt
			want.RowKey = want.Job.String() + "-" + died.Format("20060102T150405.000000Z")
			want.DequeueCount, want.FirstFailureAt, want.LastFailureAt, want.Status = 1, died, died, storage.DLQPending
			got := *must(w.DeadLetter(w.ctx, want.Engine, want.RowKey))
			if message := string(got.OriginalMessage); !strings.Contains(message, `"payload":"{\"n\":1}"`) {
				t.Errorf("the message of %s: %s", want.Job, message)
			}
			if got.OriginalMessage = nil; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		if w.shown(k) != 2 || w.shown(push) != 1 {
			t.Errorf("%d and %d dead are shown", w.shown(k), w.shown(push))
		}
		w.recordsAre("dead")
	})
}

// recordsAre holds I10 and the counters.
func (w *world) recordsAre(when string) {
	w.t.Helper()
	if wrong := must(wrongRecords(w.ctx, w.DB())); wrong != "" {
		w.t.Errorf("%s: %s", when, wrong)
	}
	for _, c := range must(w.DeadCounts(w.ctx)).Consumers {
		if missing, stray, err := w.DeadLetterDrift(w.ctx, c.ConsumerKey); missing != 0 || stray != 0 || err != nil {
			w.t.Errorf("%s: %s: %d missing, %d stray, %v", when, c.ConsumerID, missing, stray, err)
		}
	}
	w.countsRight()
}

// TestWaysOutOfAnEnginesDeath goes each way out of DEAD, with a dead letter of the same engine from elsewhere beside it that
// nothing may touch.
func TestWaysOutOfAnEnginesDeath(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.engine("hmac", rotationQueue)
		elsewhere := letter("hmac", "elsewhere", anInstant)
		elsewhere.RowKey, elsewhere.OriginalQueue = "r1", rotationQueue
		must(w.AddDeadLetter(w.ctx, elsewhere))
		n := 0
		dead := func() (storage.ID, storage.DeadLetter) {
			t.Helper()
			n++
			j := w.enqueued(k, fmt.Sprint("m", n))
			w.die(k, j, &storage.Subject{InstanceID: fmt.Sprint("tenant-", n)})
			w.countAll()
			w.recordsAre("after a death")
			open := w.pending("hmac")
			if len(open) != 2 || open[0].Job != j.ID {
				t.Fatalf("%+v", open)
			}
			return j.ID, open[0]
		}
		closed := func(d storage.DeadLetter, status storage.DLQStatus, note, by, operation string) {
			t.Helper()
			got := must(w.DeadLetter(w.ctx, "hmac", d.RowKey))
			if got.Status != status || got.ResolutionNotes != note || got.ResolvedBy != by || (got.QueueMessageID != "") != (note == "Retried") {
				t.Errorf("%s: %+v", operation, got)
			}
			if open := w.pending("hmac"); len(open) != 1 || open[0].RowKey != "r1" || !open[0].Job.IsZero() {
				t.Errorf("%s: open %+v", operation, open)
			}
			if operation != "" {
				f := storage.HistoryFilter{Engine: "hmac", Operation: operation}
				if rows, _, err := w.ListHistory(w.ctx, f, nil, 10); err != nil || len(rows) == 0 {
					t.Errorf("%s: %+v, %v", operation, rows, err)
				}
			}
			w.recordsAre(operation)
		}
		again := func(id storage.ID) {
			t.Helper()
			w.is(storage.StatusQueued, id)
			j := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 1))[0]
			w.finish(outcome(j.ID, j.Token, k, storage.Delivered))
		}

		id, d := dead()
		w.ok(w.RequeueOne(w.ctx, k.Key, id, "ann"))
		closed(d, storage.DLQResolved, "Retried", "ann", "requeue")
		again(id)
		id, d = dead()
		if n := must(w.RequeueAll(w.ctx, k.Key, "ann")); n != 1 {
			t.Errorf("%d requeued", n)
		}
		closed(d, storage.DLQResolved, "Retried", "ann", "requeue")
		again(id)
		id, d = dead()
		w.ok(w.PurgeOne(w.ctx, k.Key, id, ourMaxRetry, "ann")) // after one attempt: its engine has a limit of its own
		closed(d, storage.DLQResolved, "Deleted", "ann", "purge")
		_, d = dead()
		if n := must(w.PurgeAll(w.ctx, k.Key, ourMaxRetry, "ann")); n != 1 {
			t.Errorf("%d purged", n)
		}
		closed(d, storage.DLQResolved, "Deleted", "ann", "purge")

		id, d = dead()
		first := must(w.RetryDeadLetter(w.ctx, "hmac", d.RowKey, "bob"))
		if second := must(w.RetryDeadLetter(w.ctx, "hmac", d.RowKey, "eve")); !first.Again || first.Job != id || first.ConsumerKey != k.Key || second.Again || second.QueueMessageID != first.QueueMessageID {
			t.Errorf("%+v, %+v", first, second)
		}
		closed(d, storage.DLQResolved, "Retried", "bob", "requeue")
		again(id)

		id, d = dead()
		must(w.ResolveDeadLetter(w.ctx, "hmac", d.RowKey, storage.Resolution{Status: storage.DLQExpired, Notes: "old", By: "ann"}))
		w.is(storage.StatusShelved, id)
		closed(d, storage.DLQExpired, "old", "ann", "expire")
		if r := must(w.RetryDeadLetter(w.ctx, "hmac", d.RowKey, "bob")); !r.Again || r.Job != id {
			t.Errorf("%+v", r)
		}
		closed(d, storage.DLQResolved, "Retried", "bob", "requeue")
		again(id)

		id, d = dead()
		w.exec(`UPDATE job SET status = 1001 WHERE id = ?`, id)
		if _, stray, err := w.DeadLetterDrift(w.ctx, k.Key); stray != 1 || err != nil {
			t.Errorf("%d stray, %v", stray, err)
		}
		must(w.RepairDeadCount(w.ctx, k.Key))
		closed(d, storage.DLQResolved, "Its job was not dead", "repair", "")
		w.exec(`UPDATE job SET status = 1004 WHERE id = ?`, id)
		w.exec(`DELETE FROM engineDlq WHERE RowKey = ?`, d.RowKey)
		if missing, _, err := w.DeadLetterDrift(w.ctx, k.Key); missing != 1 || err != nil {
			t.Errorf("%d missing, %v", missing, err)
		}
		must(w.RepairDeadCount(w.ctx, k.Key))
		w.recordsAre("repaired")
		w.ok(w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
		must(w.RemoveJobs2())
		closed(d, storage.DLQResolved, "Deleted", "broker", "")
	})
}

func TestRetentionOfAnEnginesJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.engine("hmac", rotationQueue)
	var ids []storage.ID
	for i := range 3 {
		j := w.enqueued(k, fmt.Sprint("m", i))
		w.die(k, j, nil)
		ids = append(ids, j.ID)
	}
	must(w.ResolveDeadLetter(w.ctx, "hmac", w.pending("hmac")[2].RowKey, storage.Resolution{Status: storage.DLQResolved, By: "ann"}))
	if n := must(w.ExpireDeadLetters(w.ctx, -time.Hour, "hmac", "ann")); n != 2 {
		t.Errorf("expired %d, want 2", n)
	}
	w.is(storage.StatusShelved, ids...)
	w.recordsAre("shelved")
	if n, _, err := w.PruneDeadLetters(w.ctx, time.Hour, 100, false); n != 0 || err != nil {
		t.Errorf("pruned %d that are young, %v", n, err)
	}
	if n, _, err := w.PruneDeadLetters(w.ctx, -time.Hour, 100, false); n != 3 || err != nil {
		t.Errorf("pruned %d, want 3, %v", n, err)
	}
	if n := w.number(`SELECT COUNT(*) FROM job`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
	w.recordsAre("pruned")
}

// TestForeignRecordBecomesAJob follows a dead letter from elsewhere whose engine has a queue here: its retry is a new
// message, and what becomes of that message's job is no business of the record any more.
func TestForeignRecordBecomesAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.engine("hmac", rotationQueue)
	d := letter("hmac", "elsewhere", anInstant)
	d.RowKey, d.OriginalQueue = "r1", rotationQueue
	must(w.AddDeadLetter(w.ctx, d))
	first := must(w.RetryDeadLetter(w.ctx, "hmac", "r1", "ann"))
	if !first.Again || first.ConsumerKey != k.Key {
		t.Fatalf("%+v", first)
	}
	j := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 1))[0]
	if j.ID != first.Job || string(j.Body) != `{"n":1}` || j.MessageID != first.QueueMessageID {
		t.Errorf("%+v", j)
	}
	w.die(k, j, nil)
	w.recordsAre("dead")
	if again := must(w.RetryDeadLetter(w.ctx, "hmac", "r1", "bob")); again.Again || again.Job != j.ID {
		t.Errorf("%+v", again)
	}
	w.is(storage.StatusDead, j.ID)
	if _, err := w.ResolveDeadLetter(w.ctx, "hmac", "r1", storage.Resolution{Status: storage.DLQResolved}); !errors.Is(err, storage.ErrBadResolution) {
		t.Error(err)
	}
	if n := must(w.ExpireDeadLetters(w.ctx, -time.Hour, "hmac", "ann")); n != 1 {
		t.Errorf("expired %d, want the job's own", n)
	}
	w.exec(`UPDATE engineDlq SET ResolvedAtUtc = ResolvedAtUtc - INTERVAL 2 HOUR WHERE RowKey = 'r1'`)
	if n, _, err := w.PruneDeadLetters(w.ctx, time.Hour, 100, false); n != 1 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	w.is(storage.StatusShelved, j.ID)
	w.recordsAre("its record pruned")
}

package storage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// letter is a dead letter of an engine outside.
func letter(engine, instance string, at time.Time) storage.DeadLetter {
	return storage.DeadLetter{
		Engine: engine, InstanceID: instance, OriginalQueue: "orders", OriginalMessage: json.RawMessage(`{"n":1}`), ErrorMessage: "boom",
		DequeueCount: 3, FirstFailureAt: at.Add(-time.Hour), LastFailureAt: at, CorrelationID: storage.NewID().String(),
	}
}

var anInstant = time.Date(2026, 5, 4, 3, 2, 1, 987654000, time.UTC)

func TestRecordOfADeath(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		lease := w.lease(longLease)
		id := w.accepted(1, k, lease)[0]
		retry := outcome(id, lease.Token, k, storage.RetryLater)
		retry.Delay = 0
		must(w.Finish(w.ctx, 0, []storage.Outcome{retry}))
		firstFailure := w.row(id).ChangedAt
		again := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 1))[0]
		must(w.Finish(w.ctx, 0, []storage.Outcome{{JobID: id, Token: again.Token, ConsumerKey: k.Key, Verdict: storage.Die, ErrorClass: "http_5xx", Error: "503"}}))

		rows, more, err := w.ListDeadLetters(w.ctx, storage.DLQFilter{}, nil, 10)
		if err != nil || more || len(rows) != 1 {
			t.Fatalf("%+v, %v, %v", rows, more, err)
		}
		d := rows[0]
		died := w.row(id).ChangedAt
		want := storage.DeadLetter{
			Engine: "delivery", RowKey: id.String() + "-" + died.Format("20060102T150405.000000Z"), InstanceID: "k", OriginalQueue: "orders",
			ErrorMessage: "http_5xx: 503", DequeueCount: 2, FirstFailureAt: firstFailure, LastFailureAt: died, Status: storage.DLQPending,
			CorrelationID: must(w.Job(w.ctx, id)).MessageID, Job: id,
		}
		if fmt.Sprint(d) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", d, want)
		}
		full := must(w.DeadLetter(w.ctx, d.Engine, d.RowKey))
		if got, want := string(full.OriginalMessage), `{"messageId":"`+d.CorrelationID+`","contentType":"application/json","priority":0,"headers":{"X-Trace":"t1"},"payload":"{\"n\":1}"}`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if _, err := w.DeadLetter(w.ctx, "hmac", d.RowKey); !errors.Is(err, storage.ErrNotFound) {
			t.Error(err)
		}

		must(0, w.PurgeOne(w.ctx, k.Key, id, 0, "ann"))
		full = must(w.DeadLetter(w.ctx, d.Engine, d.RowKey))
		if full.Status != storage.DLQResolved || full.ResolutionNotes != "Deleted" || full.ResolvedBy != "ann" || full.QueueMessageID != "" || full.OriginalMessage != nil {
			t.Errorf("after the purge %+v", full)
		}
		if _, err := w.RetryDeadLetter(w.ctx, d.Engine, d.RowKey, "ann"); !errors.Is(err, storage.ErrJobGone) || !errors.Is(err, storage.ErrBadResolution) {
			t.Error(err)
		}
	})
}

// TestRecordsGoWithTheirJobs sees what each way out of DEAD makes of the records, and that they are those of one transaction.
func TestRecordsGoWithTheirJobs(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, pull := w.consumer("k", storage.TypePush), w.consumer("p", storage.TypePull)
		closed := func(note, by string, n int, ids bool) {
			t.Helper()
			rows, _, err := w.ListDeadLetters(w.ctx, storage.DLQFilter{Status: storage.DLQResolved}, nil, 100)
			w.ok(err)
			seen := map[string]bool{}
			for _, d := range rows {
				if d.ResolutionNotes != note || d.ResolvedBy != by || d.ResolvedAt == nil || (d.QueueMessageID != "") != ids {
					t.Errorf("%+v", d)
				}
				if _, err := storage.ParseID(d.QueueMessageID); ids && err != nil {
					t.Error(err)
				}
				seen[d.QueueMessageID] = true
			}
			if len(rows) != n || ids && len(seen) != n {
				t.Errorf("%d records, %d queue message ids, want %d", len(rows), len(seen), n)
			}
			w.exec(`DELETE FROM engineDlq`)
		}
		w.dead(5, k)
		must(w.RequeueAll(w.ctx, k.Key, "bob"))
		closed("Retried", "bob", 5, true)
		w.ok(w.RequeueOne(w.ctx, k.Key, w.dead(1, k)[0], "bob"))
		closed("Retried", "bob", 1, true)
		w.dead(3, k)
		must(w.PurgeAll(w.ctx, k.Key, 0, "bob"))
		closed("Deleted", "bob", 3, false)
		id := w.inStatus(pull, storage.StatusDead, true)
		w.ok(w.SetPullState(w.ctx, storage.PullState{Job: id, Consumer: pull, Next: storage.StatusInflight, Lease: time.Minute}))
		closed("Retried", "consumer", 1, true)
		w.dead(2, k)
		w.ok(w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
		must(w.RemoveJobs2())
		closed("Deleted", "broker", 2, false)
	})
}

func TestResolveShelves(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		ids := w.dead(4, k)
		w.countAll()
		rows, _, err := w.ListDeadLetters(w.ctx, storage.DLQFilter{}, nil, 10)
		w.ok(err)
		d := rows[slices.IndexFunc(rows, func(d storage.DeadLetter) bool { return d.Job == ids[0] })]
		for _, status := range []storage.DLQStatus{storage.DLQPending, "", "Done"} {
			if _, err := w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: status}); !errors.Is(err, storage.ErrBadResolution) {
				t.Errorf("%q: %v", status, err)
			}
		}
		if _, err := w.ResolveDeadLetter(w.ctx, d.Engine, "x", storage.Resolution{Status: storage.DLQResolved}); !errors.Is(err, storage.ErrNotFound) {
			t.Error(err)
		}
		must(w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: storage.DLQResolved, Notes: "known", By: "ann"}))
		w.is(storage.StatusShelved, ids[0])
		if n := w.shown(k); n != 3 {
			t.Errorf("%d dead are shown, want 3", n)
		}
		w.countsRight()
		if _, err := w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: storage.DLQExpired}); !errors.Is(err, storage.ErrBadResolution) {
			t.Errorf("resolved twice: %v", err)
		}

		first := must(w.RetryDeadLetter(w.ctx, d.Engine, d.RowKey, "bob"))
		if !first.Again || first.Job != ids[0] || first.ConsumerKey != k.Key {
			t.Errorf("%+v", first)
		}
		w.is(storage.StatusQueued, ids[0])
		second := must(w.RetryDeadLetter(w.ctx, d.Engine, d.RowKey, "eve"))
		if second.Again || second.Job != first.Job || second.QueueMessageID != first.QueueMessageID {
			t.Errorf("the second retry: %+v, the first %+v", second, first)
		}
		if d := must(w.DeadLetter(w.ctx, d.Engine, d.RowKey)); d.Status != storage.DLQResolved || d.ResolutionNotes != "Retried" || d.ResolvedBy != "bob" {
			t.Errorf("%+v", d)
		}
		if r := w.row(ids[0]); r.RetryCount != 0 || r.DueAt.Valid {
			t.Errorf("%+v", r)
		}

		if n := must(w.ExpireDeadLetters(w.ctx, time.Hour, "", "ann")); n != 0 {
			t.Errorf("expired %d that are young", n)
		}
		if n := must(w.ExpireDeadLetters(w.ctx, -time.Hour, "hmac", "ann")); n != 0 {
			t.Errorf("expired %d of another engine", n)
		}
		if n := must(w.ExpireDeadLetters(w.ctx, -time.Hour, "", "ann")); n != 3 {
			t.Errorf("expired %d, want 3", n)
		}
		w.is(storage.StatusShelved, ids[1:]...)
		w.countAll()
		w.countsRight()
		if n := w.shown(k); n != 0 {
			t.Errorf("%d dead are shown", n)
		}
	})
}

func TestAddDeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := letter("hmac", "publisher", anInstant)
	add := func(d storage.DeadLetter, want bool) {
		t.Helper()
		if created, err := w.AddDeadLetter(w.ctx, d); created != want || err != nil {
			t.Errorf("created %v, %v", created, err)
		}
	}
	add(d, true)
	add(d, false)
	got := must(w.DeadLetter(w.ctx, "hmac", "publisher-20260504T030201.987654Z"))
	if string(got.OriginalMessage) != `{"n":1}` || got.Status != storage.DLQPending || !got.LastFailureAt.Equal(anInstant) || got.DequeueCount != 3 {
		t.Errorf("%+v", got)
	}
	other := d
	other.CorrelationID = "another"
	add(other, true) // of the same instant
	add(other, false)
	other.Engine = "tls"
	add(other, true)
	keyed := d
	keyed.RowKey = "k-1"
	add(keyed, true)
	add(keyed, false)
	keyed.Engine = storage.EngineDelivery
	if _, err := w.AddDeadLetter(w.ctx, keyed); !errors.Is(err, storage.ErrReservedEngine) {
		t.Error(err)
	}
	long := d
	long.RowKey = fmt.Sprintf("%0301d", 1)
	if _, err := w.AddDeadLetter(w.ctx, long); err == nil {
		t.Error("a row key of 301 characters was taken")
	}
	if n := w.number(`SELECT COUNT(*) FROM engineDlq`); n != 4 {
		t.Errorf("%d dead letters, want 4", n)
	}
}

func TestRetryOfAnEngineBroadcasts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		d := letter("hmac", "publisher", anInstant)
		d.RowKey = "r1"
		must(w.AddDeadLetter(w.ctx, d))
		nowhere := letter("hmac", "publisher", anInstant)
		nowhere.RowKey, nowhere.OriginalQueue = "r2", "hmac-rotation-queue"
		must(w.AddDeadLetter(w.ctx, nowhere))
		if _, err := w.RetryDeadLetter(w.ctx, "hmac", "r2", "ann"); !errors.Is(err, storage.ErrNoQueue) {
			t.Error(err)
		}
		if d := must(w.DeadLetter(w.ctx, "hmac", "r2")); d.Status != storage.DLQPending {
			t.Errorf("%+v", d)
		}
		first := must(w.RetryDeadLetter(w.ctx, "hmac", "r1", "ann"))
		if !first.Again || first.ConsumerKey != k.Key {
			t.Errorf("%+v", first)
		}
		m, jobs, err := w.Message(w.ctx, w.channel.Key, first.QueueMessageID)
		if err != nil || string(m.Body) != `{"n":1}` || m.ContentType != "application/json" || len(jobs) != 1 || jobs[0].ID != first.Job || jobs[0].Status != storage.StatusQueued {
			t.Errorf("%+v, %+v, %v", m, jobs, err)
		}
		if second := must(w.RetryDeadLetter(w.ctx, "hmac", "r1", "bob")); second.Again || second.Job != first.Job || second.QueueMessageID != first.QueueMessageID {
			t.Errorf("%+v", second)
		}
		if n := w.number(`SELECT COUNT(*) FROM message`); n != 1 {
			t.Errorf("%d messages", n)
		}
		w.countsRight()
	})
}

func TestPruneDeadLetters(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		ids := w.dead(6, k)
		for i, d := range must2(w.ListDeadLetters(w.ctx, storage.DLQFilter{}, nil, 10))(new(bool)) {
			if to := []storage.DLQStatus{storage.DLQResolved, storage.DLQExpired, ""}[i%3]; to != "" {
				must(w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: to, By: "ann"}))
			}
		}
		prune := func(age time.Duration, dry bool, want int64) {
			t.Helper()
			if n, _, err := w.PruneDeadLetters(w.ctx, age, 100, dry); n != want || err != nil {
				t.Errorf("pruned %d, %v; want %d", n, err, want)
			}
		}
		prune(time.Hour, false, 0)
		prune(-time.Hour, true, 4)
		w.is(storage.StatusShelved, must(w.shelved())...)
		// A job that was retried and shelved again belongs to its later dead letter alone.
		again := must2(w.ListDeadLetters(w.ctx, storage.DLQFilter{Status: storage.DLQResolved}, nil, 1))(new(bool))[0]
		must(w.RetryDeadLetter(w.ctx, again.Engine, again.RowKey, "ann"))
		claimed := must(w.Claim(w.ctx, k.Key, w.lease(longLease), 1))[0]
		must(w.Finish(w.ctx, 0, []storage.Outcome{outcome(claimed.ID, claimed.Token, k, storage.Die)}))
		w.exec(`UPDATE engineDlq SET ResolvedAtUtc = ResolvedAtUtc - INTERVAL 2 HOUR WHERE RowKey = ?`, again.RowKey)
		for _, d := range must2(w.ListDeadLetters(w.ctx, storage.DLQFilter{Status: storage.DLQPending}, nil, 10))(new(bool)) {
			if d.Job == again.Job {
				must(w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: storage.DLQResolved}))
			}
		}
		prune(time.Hour, false, 1)
		w.is(storage.StatusShelved, again.Job)
		w.countsRight()
		if n, more, err := w.PruneDeadLetters(w.ctx, -time.Hour, 2, false); n != 2 || !more || err != nil {
			t.Errorf("%d, %v, %v", n, more, err)
		}
		prune(-time.Hour, false, 2)
		prune(-time.Hour, false, 0)
		if n := w.number(`SELECT COUNT(*) FROM job`); n != 2 || len(ids) != 6 {
			t.Errorf("%d jobs are left, want the 2 that are dead", n)
		}
		w.countsRight()
		if wrong := must(wrongRecords(w.ctx, w.DB())); wrong != "" {
			t.Error(wrong)
		}
	})
}

func (w *world) shelved() ([]storage.ID, error) {
	rows, err := w.DB().QueryContext(w.ctx, `SELECT id FROM job WHERE status = 1005`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var ids []storage.ID
	for rows.Next() {
		var id storage.ID
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func TestTableNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.dead(2, k)
	for _, name := range []string{"a", "1abc", "x y z", "drop`table", "engineHistory"} {
		if _, err := storage.Open(storage.Options{DSN: w.dsn, DLQTable: name}); err == nil {
			t.Errorf("%q is taken for a table name", name)
		}
	}
	s := must(storage.Open(storage.Options{DSN: w.dsn, DLQTable: "appDlq", HistoryTable: "appHistory"}))
	t.Cleanup(func() { _ = s.Close() })
	for range 2 {
		w.ok(s.EnsureEngineTables(w.ctx))
	}
	w.ok(s.EnsureHistoryPartitions(w.ctx, 1))
	if rows, _, err := s.ListDeadLetters(w.ctx, storage.DLQFilter{}, nil, 10); err != nil || len(rows) != 2 {
		t.Errorf("the dead jobs have %d records in the new table, want 2 (%v)", len(rows), err)
	}
	must(s.RequeueAll(w.ctx, k.Key, "ann"))
	if rows, _, err := s.ListHistory(w.ctx, storage.HistoryFilter{}, nil, 10); err != nil || len(rows) != 1 || rows[0].Operation != "requeue" {
		t.Errorf("%+v, %v", rows, err)
	}
	if n := w.number(`SELECT COUNT(*) FROM engineDlq WHERE Status = 'Pending'`); n != 2 {
		t.Errorf("the other table was touched: %d", n)
	}
}

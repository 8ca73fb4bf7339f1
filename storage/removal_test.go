package storage_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestDeleteConsumer(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
		shared := w.message(k, other)
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{shared}))
		w.inEachStatus(k)
		w.dead(3, k)
		w.countAll()
		w.dead(2, k)
		w.dead(1, other)

		for name, at := range map[string]time.Time{"older": k.ChangedAt.Add(-time.Second), "newer": k.ChangedAt.Add(time.Second)} {
			if err := w.DeleteConsumer(w.ctx, k.Key, at); !errors.Is(err, storage.ErrPreconditionFailed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := w.DeleteConsumer(w.ctx, 4711, k.ChangedAt); !errors.Is(err, storage.ErrNotFound) {
			t.Error(err)
		}
		w.ok(w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
		if err := w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("deleted twice: %v", err)
		}

		// Nobody sees its jobs from now on.
		counts := must(w.DeadCounts(w.ctx))
		if len(counts.Consumers) != 1 || counts.Consumers[0].ConsumerKey != other.Key || counts.Consumers[0].Dead != 1 {
			t.Errorf("%+v", counts)
		}
		for _, c := range must(w.JobStatus(w.ctx)) {
			if c.ConsumerKey != other.Key {
				t.Errorf("%+v", c)
			}
		}
		if _, jobs, err := w.Message(w.ctx, w.channel.Key, shared.MessageID); err != nil || len(jobs) != 1 || jobs[0].ConsumerKey != other.Key {
			t.Errorf("%+v, %v", jobs, err)
		}
		for _, work := range must(w.FindWork(w.ctx)) {
			if work.ConsumerKey == k.Key {
				t.Errorf("%+v", work)
			}
		}
		w.countAll()
		w.countsRight()

		// Another consumer of the same name has nothing of it.
		again := w.consumer("k", storage.TypePull)
		if again.Key == k.Key || w.shown(again) != 0 {
			t.Errorf("the new consumer has key %d (the old one %d) and %d dead jobs", again.Key, k.Key, w.shown(again))
		}

		var removed int64
		for {
			n, more, err := w.RemoveJobs(w.ctx, 4)
			w.ok(err)
			if n > 4 || more != (n > 0) {
				t.Errorf("removed %d of at most 4, more %v", n, more)
			}
			if removed += n; !more {
				break
			}
		}
		if left := w.number(`SELECT COUNT(*) FROM job WHERE consumerId = ?`, k.Key); removed != 10 || left != 0 {
			t.Errorf("removed %d jobs, %d are left", removed, left)
		}
		if n := w.number(`SELECT COUNT(*) FROM tally WHERE kind IN (1, 2) AND refId = ?`, k.Key); n != 0 {
			t.Errorf("%d tallies are left", n)
		}
		w.countsRight()

		// A broadcast that was being accepted leaves a job behind: it is found, until the removal is closed.
		late := w.queued(1, k)
		if n, _, err := w.RemoveJobs(w.ctx, 4); n != 1 || err != nil {
			t.Errorf("the late job %v was not removed: %d, %v", late, n, err)
		}
		open := func() int64 { return w.number(`SELECT COUNT(*) FROM consumer_removal`) }
		must(w.RemoveJobs2())
		if open() != 1 {
			t.Error("the removal was closed at once")
		}
		w.exec(`UPDATE consumer_removal SET deletedAt = deletedAt - INTERVAL 11 MINUTE`)
		must(w.RemoveJobs2())
		if open() != 0 {
			t.Error("the removal was not closed")
		}
	})
}

// RemoveJobs2 is RemoveJobs for those who do not care whether there is more.
func (w *world) RemoveJobs2() (int64, error) {
	n, _, err := w.RemoveJobs(w.ctx, 100)
	return n, err
}

// TestRemovalStaysOpenWhileJobsAreLocked has another instance hold the last jobs when this one comes: they may yet be
// there when it is done (it may crash), so the removal must not be closed.
func TestRemovalStaysOpenWhileJobsAreLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.queued(2, k)
	w.ok(w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
	w.exec(`UPDATE consumer_removal SET deletedAt = deletedAt - INTERVAL 11 MINUTE`)
	tx, err := w.DB().BeginTx(w.ctx, nil)
	w.ok(err)
	_, err = tx.ExecContext(w.ctx, `DELETE FROM job WHERE consumerId = ?`, k.Key)
	w.ok(err)
	if n := must(w.RemoveJobs2()); n != 0 {
		t.Errorf("removed %d locked jobs", n)
	}
	w.ok(tx.Rollback())
	if n := must(w.RemoveJobs2()); n != 2 {
		t.Errorf("then removed %d, want 2", n)
	}
	must(w.RemoveJobs2())
	if n := w.number(`SELECT COUNT(*) FROM consumer_removal`); n != 0 {
		t.Error("the removal was not closed")
	}
}

// TestDeleteConsumerWhileItIsCounted has a cycle wait for the summary row of a consumer that is being deleted.
func TestDeleteConsumerWhileItIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.dead(3, k)
	counted := make(chan error, 1)
	r := &recorder{before: func(query string) {
		if !strings.HasPrefix(query, `DELETE FROM consumer WHERE`) {
			return
		}
		go func() { _, err := w.CountBatch(w.ctx, 100); counted <- err }()
		eventually(t, "the cycle waits for the summary row", func() bool { return w.running(`INSERT INTO dlq_summary`) })
	}}
	deleting, err := storage.Open(storage.Options{DSN: w.dsn, WrapConnector: r.wrap})
	w.ok(err)
	t.Cleanup(func() { _ = deleting.Close() })
	w.ok(deleting.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
	w.ok(<-counted)
	w.countsRight()
	if n := w.number(`SELECT COUNT(*) FROM dlq_summary`); n != 0 {
		t.Errorf("%d rows for a consumer that is no more", n)
	}
}

// running tells whether the server is executing a statement on w's database that begins so.
func (w *world) running(prefix string) bool {
	w.t.Helper()
	rows, err := w.DB().QueryContext(w.ctx, `SHOW FULL PROCESSLIST`)
	w.ok(err)
	defer func() { _ = rows.Close() }()
	database := w.dsn[strings.LastIndexByte(w.dsn, '/')+1:]
	database, _, _ = strings.Cut(database, "?")
	columns := must(rows.Columns())
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		w.ok(rows.Scan(dest...))
		if values[3].String == database && strings.HasPrefix(values[7].String, prefix) {
			return true
		}
	}
	w.ok(rows.Err())
	return false
}

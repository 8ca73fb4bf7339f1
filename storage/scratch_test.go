package storage_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func handlerReads(t *testing.T, db *sql.DB) (n int64) {
	rows, err := db.Query(`SHOW SESSION STATUS LIKE 'Handler_read%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var v int64
		rows.Scan(&name, &v)
		n += v
	}
	return n
}

func TestScratch(t *testing.T) {
	p := newPlanWorld(t)
	one, _ := storage.Open(storage.Options{DSN: p.dsn, MaxOpenConns: 1})
	defer one.Close()
	h := func(name string, f func() error) {
		handlerReads(t, one.DB())
		a := handlerReads(t, one.DB())
		b := handlerReads(t, one.DB())
		if err := f(); err != nil {
			t.Error(name, err)
		}
		c := handlerReads(t, one.DB())
		t.Log(name, c-b-(b-a))
	}
	q := func(sqlText string) func() error {
		return func() error {
			rows, err := one.DB().Query(sqlText)
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return rows.Close()
		}
	}
	for i := 0; i < 3; i++ {
	h("loose", q(`SELECT consumerId, status, MIN(dueAt) FROM job FORCE INDEX (claim) GROUP BY consumerId, status`))
	h("loose status", q(`SELECT consumerId, status, MIN(dueAt) FROM job FORCE INDEX (claim) WHERE status IN (1001,1002) GROUP BY consumerId, status`))
	h("loose group", q(`SELECT consumerId, status, MIN(dueAt) FROM job FORCE INDEX FOR GROUP BY (claim) WHERE status IN (1001,1002) GROUP BY consumerId, status`))
	time.Sleep(3 * time.Second)
	}
	h("findwork", func() error { _, err := one.FindWork(p.ctx); return err })
	h("jobstatus", func() error { _, err := one.JobStatus(p.ctx); return err })
	h("deadcounts", func() error { _, err := one.DeadCounts(p.ctx); return err })
	h("messagecounts", func() error { _, err := one.MessageCounts(p.ctx, p.channel.Key); return err })
	h("claim", func() error { _, err := one.Claim(p.ctx, p.consumers[0].Key, p.lease(longLease), 100); return err })
	h("queued", func() error { _, err := one.QueuedJobs(p.ctx, p.consumers[0].Key, 100); return err })
	h("removejobs", func() error { _, _, err := one.RemoveJobs(p.ctx, 100); return err })
	h("loose", q(`SELECT consumerId, status, MIN(dueAt) FROM job FORCE INDEX (claim) GROUP BY consumerId, status`))
	h("loose status", q(`SELECT consumerId, status, MIN(dueAt) FROM job FORCE INDEX (claim) WHERE status IN (1001,1002) GROUP BY consumerId, status`))
	h("loose2", q(`SELECT c.id, w.status, w.due FROM consumer c LEFT JOIN (SELECT consumerId, status, MIN(dueAt) AS due FROM job FORCE INDEX (claim) GROUP BY consumerId, status) w ON w.consumerId = c.id AND w.status IN (1001, 1002)`))
	h("prefix", q(`SELECT c.id, (SELECT j.dueAt FROM job j FORCE INDEX (claim)
			WHERE j.consumerId = c.id AND j.status = 1002 ORDER BY j.consumerId, j.status, j.dueAt LIMIT 1) FROM consumer c`))
	h("prefix desc", q(`SELECT c.id, (SELECT j.statusChangedAt FROM job j FORCE INDEX (changed) WHERE j.consumerId = c.id AND j.status = 1004 ORDER BY j.consumerId DESC, j.status DESC, j.statusChangedAt DESC LIMIT 1) FROM consumer c`))
	h("prefix due", q(`SELECT c.id, (SELECT j.dueAt FROM job j FORCE INDEX (claim)
			WHERE j.consumerId = c.id AND j.status = 1001 AND j.dueAt > '1970-01-01' ORDER BY j.consumerId, j.status, j.dueAt LIMIT 1) FROM consumer c`))
	h("const due", q(`SELECT (SELECT j.dueAt FROM job j FORCE INDEX (claim)
			WHERE j.consumerId = 1 AND j.status = 1001 AND j.dueAt > '1970-01-01' ORDER BY j.dueAt LIMIT 1)`))
}

package storage_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// dieMany makes n dead jobs of a consumer with their dead letters, three of them at an instant, from number first on.
func (w *world) dieMany(k *storage.Consumer, first, n int) {
	w.t.Helper()
	w.exec(`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, precedence, retryAttemptCount)
		SELECT UNHEX(LPAD(HEX(? + n), 24, '0')), UNHEX(LPAD(HEX(n), 24, '0')), ?, 1004, '2020-05-04 03:02:01.123456' + INTERVAL n DIV 3 SECOND, 0, 5
		FROM `+thousands+` WHERE n < ?`, first, k.Key, n)
	must(w.RepairDeadCount(w.ctx, k.Key))
}

func (w *world) wantDrift(k *storage.Consumer, want storage.LetterDrift) {
	w.t.Helper()
	if got := must(w.AuditDeadLetters(w.ctx, k.Key)); got != want {
		w.t.Errorf("%s: audited %+v, want %+v", k.ID, got, want)
	}
	missing, stray, err := w.DeadLetterDrift(w.ctx, k.Key)
	if w.ok(err); missing != want.Missing || stray != want.Stray {
		w.t.Errorf("%s: %d missing, %d stray, want %+v", k.ID, missing, stray, want)
	}
}

// TestAuditDeadLetters spoils what is right in every way and has the audit find it, in lists of several chunks.
func TestAuditDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k, other := w.consumer("k", storage.TypePush), w.consumer("other", storage.TypePush)
	const n = 4100
	w.dieMany(k, 1, n)
	w.dieMany(other, 100_001, 7)
	// A consumer of the same id in another channel, whose dead letters are not k's.
	elsewhere := must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "elsewhere", Name: "Elsewhere", Token: "t"}))
	twin := must(w.PutConsumer(w.ctx, storage.PutConsumer{PutStakeholder: storage.PutStakeholder{ID: "k", Name: "Twin", Token: "t"},
		ChannelKey: elsewhere.Key, Type: storage.TypePush, CallbackURL: "http://twin.example/"}))
	w.dieMany(twin, 200_001, 2500)
	// An engine, which has dead letters from outside as well.
	eng := must(w.PutEngineQueue(w.ctx, "hmac", "hmac-rotation-queue"))
	w.dieMany(eng, 300_001, 2100)
	must(w.AddDeadLetter(w.ctx, storage.DeadLetter{Engine: "hmac", InstanceID: "hmac", OriginalQueue: "hmac-rotation-queue", OriginalMessage: []byte(`{}`),
		ErrorMessage: "e", DequeueCount: 1, FirstFailureAt: time.Unix(1e9, 0), LastFailureAt: time.Unix(1e9, 0), CorrelationID: "c"}))
	for _, c := range []*storage.Consumer{k, other, twin, eng} {
		w.wantDrift(c, storage.LetterDrift{})
	}
	w.exec(`DELETE FROM engineDlq WHERE PartitionKey = 'hmac' AND JobId IS NOT NULL ORDER BY RowKey LIMIT 5`)
	w.exec(`UPDATE job SET status = 1001 WHERE consumerId = ? ORDER BY id DESC LIMIT 2`, eng.Key)
	w.wantDrift(eng, storage.LetterDrift{Missing: 5, Stray: 2})
	w.exec(`DELETE FROM engineDlq WHERE OriginalQueue = 'orders' AND InstanceId = 'k' ORDER BY RowKey LIMIT 2100`)
	w.wantDrift(k, storage.LetterDrift{Missing: 2100})
	w.exec(`UPDATE engineDlq SET Status = 'Resolved' WHERE OriginalQueue = 'orders' AND InstanceId = 'k' ORDER BY RowKey DESC LIMIT 3`)
	w.wantDrift(k, storage.LetterDrift{Missing: 2103})
	w.exec(`DELETE FROM job WHERE consumerId = ? ORDER BY id LIMIT 100`, k.Key) // they had none any more
	w.wantDrift(k, storage.LetterDrift{Missing: 2003})
	w.exec(`UPDATE job SET status = 1001 WHERE consumerId = ? AND id BETWEEN UNHEX(LPAD(HEX(3001), 24, '0')) AND UNHEX(LPAD(HEX(3050), 24, '0'))`, k.Key)
	w.wantDrift(k, storage.LetterDrift{Missing: 2003, Stray: 50})
	w.exec(`UPDATE job SET statusChangedAt = statusChangedAt + INTERVAL 1 DAY WHERE id = UNHEX(LPAD(HEX(3100), 24, '0'))`)
	w.wantDrift(k, storage.LetterDrift{Missing: 2004, Stray: 51})
	w.exec(`DELETE FROM job WHERE consumerId = ?`, twin.Key)
	w.wantDrift(twin, storage.LetterDrift{Stray: 2500})
	w.wantDrift(k, storage.LetterDrift{Missing: 2004, Stray: 51})
	w.wantDrift(other, storage.LetterDrift{})
	for _, c := range []*storage.Consumer{k, twin} {
		must(w.RepairDeadCount(w.ctx, c.Key))
		w.wantDrift(c, storage.LetterDrift{})
	}
	if got := must(w.AuditDeadLetters(w.ctx, 4711)); got != (storage.LetterDrift{}) {
		t.Errorf("of a consumer that does not exist: %+v", got)
	}
}

// TestAuditDeadLettersInTraffic has jobs die and come back between the statements of an audit: it takes none of it for
// a difference.
func TestAuditDeadLettersInTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	w.dieMany(k, 1, 4100)
	looked, checked := 0, 0
	r := &recorder{before: func(query string) {
		switch {
		case strings.HasPrefix(query, "SELECT id, statusChangedAt"), strings.HasPrefix(query, "SELECT LastFailureAtUtc"):
			looked++
		case strings.HasPrefix(query, "SELECT COUNT(*)"):
			checked++
		default:
			return
		}
		var first, last storage.ID
		w.ok(w.DB().QueryRowContext(w.ctx, `SELECT MIN(id), MAX(id) FROM job WHERE status = 1004 AND id < UNHEX(LPAD(HEX(9999), 24, '0'))`).Scan(&first, &last))
		w.ok(w.PurgeOne(w.ctx, k.Key, first, ourMaxRetry, "me"))
		w.ok(w.RequeueOne(w.ctx, k.Key, last, "me"))
		w.dead(1, k)
	}}
	audited, err := storage.Open(storage.Options{DSN: w.dsn, WrapConnector: r.wrap})
	w.ok(err)
	defer func() { _ = audited.Close() }()
	if got := must(audited.AuditDeadLetters(w.ctx, k.Key)); got != (storage.LetterDrift{}) {
		t.Errorf("%+v", got)
	}
	if looked != 6 || checked != 2 {
		t.Errorf("%d chunks were read and %d looked at again, want 6 and 2", looked, checked)
	}
	w.wantDrift(k, storage.LetterDrift{})
}

package storage_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/storage"
)

// sealed opens a store on w's database that seals with the key.
func (w *world) sealed(key []byte) *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, SealKey: key})
	w.ok(err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) put(s *storage.Store, id, token string) {
	w.t.Helper()
	must(s.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: token}}))
}

func TestConsumerTokensAreSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	key, otherKey := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)

	w.put(w.Store, "by the database's key", "secret one")
	given := w.sealed(key)
	w.put(given, "by a given key", "secret two")
	if n := w.number(`SELECT COUNT(*) FROM consumer WHERE INSTR(tokenSealed, 'secret') > 0`); n != 0 {
		t.Errorf("%d tokens are in the clear", n)
	}

	cat := must(given.Catalog(w.ctx))
	for id, want := range map[string]string{"by the database's key": "secret one", "by a given key": "secret two"} {
		if k, ok := cat.Consumer(w.channel, id); !ok || k.Token != want {
			t.Errorf("%s: token %q", id, k.Token)
		}
	}
	for name, s := range map[string]*storage.Store{"no key": w.another(), "another key": w.sealed(otherKey)} {
		if _, err := s.Catalog(w.ctx); err == nil || !strings.Contains(err.Error(), "REDRIVE_SEAL_KEY") || !strings.Contains(err.Error(), "by a given key") || strings.Contains(err.Error(), "secret") {
			t.Errorf("with %s: %v", name, err)
		}
	}

	w.exec(`UPDATE consumer SET tokenSealed = CONCAT(LEFT(tokenSealed, LENGTH(tokenSealed) - 1), CHAR(ASCII(RIGHT(tokenSealed, 1)) ^ 1)) WHERE consumerId = 'by a given key'`)
	if _, err := w.sealed(key).Catalog(w.ctx); err == nil || !strings.Contains(err.Error(), "altered") {
		t.Errorf("an altered token: %v", err)
	}
	w.exec(`UPDATE consumer SET tokenSealed = 'short' WHERE consumerId = 'by a given key'`)
	if _, err := w.sealed(key).Catalog(w.ctx); err == nil {
		t.Error("a token cut short was read")
	}
}

func TestSealingIsSalted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.put(w.Store, "a", "the same")
	w.put(w.Store, "b", "the same")
	if n := w.number(`SELECT COUNT(DISTINCT tokenSealed) FROM consumer`); n != 2 {
		t.Error("one token is sealed alike twice")
	}
	must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "x", Name: "x", Token: "p-token"}))
	if n := w.number(`SELECT COUNT(DISTINCT tokenHash) FROM producer`); n != 2 {
		t.Error("one token is hashed alike twice")
	}
}

// TestFirstKey has several instances need the database's seal key at once, before there is one.
func TestFirstKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var wg sync.WaitGroup
	for i := range 6 {
		s := w.another()
		wg.Go(func() { w.put(s, string(rune('a'+i)), "t") })
	}
	wg.Wait()
	if n := len(must(w.another().Catalog(w.ctx)).ConsumersOf(w.channel)); n != 6 {
		t.Errorf("%d consumers", n)
	}
}

func TestOpenRefusesBadOptions(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for name, o := range map[string]storage.Options{
		"a short seal key": {DSN: "u:p@tcp(127.0.0.1:1)/d", SealKey: []byte("short")},
		"no database":      {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/"},
		"no slash":         {DSN: "u:" + secret + "@tcp(127.0.0.1:1)"},
		"no DSN":           {},
		"a bad parameter":  {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/d?parseTime=" + secret},
		"a bad escape":     {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/d?loc=%zz" + secret},
		"a bad network":    {DSN: "u:" + secret + "@" + secret + "(x/d"},
	} {
		s, err := storage.Open(o)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	a, b := storage.NewToken(), storage.NewToken()
	if len(a) != 26 || a == b {
		t.Errorf("tokens %q and %q", a, b)
	}
}

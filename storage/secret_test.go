package storage_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// sealed opens a store on w's database that seals with the first of the keys.
func (w *world) sealed(keys ...[]byte) *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, SealKeys: keys, Log: slog.New(slog.DiscardHandler)})
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

	tokens := map[string]string{"by the database's key": "secret one", "by a given key": "secret two"}
	for name, s := range map[string]*storage.Store{"its key": given, "its key and another": w.sealed(otherKey, key), "another and its key": w.sealed(key, otherKey)} {
		for id, want := range tokens {
			if k, ok := must(s.Catalog(w.ctx)).Consumer(w.channel, id); !ok || k.Sealed || k.Token != want || !k.TokenMatches(want) {
				t.Errorf("with %s: %s: %+v", name, id, k)
			}
		}
	}
	// One that cannot be opened is no harm to the others.
	for name, s := range map[string]*storage.Store{"no key": w.another(), "another key": w.sealed(otherKey)} {
		cat := must(s.Catalog(w.ctx))
		if k, ok := cat.Consumer(w.channel, "by the database's key"); !ok || k.Sealed || k.Token != "secret one" {
			t.Errorf("with %s: %+v", name, k)
		}
		if k, ok := cat.Consumer(w.channel, "by a given key"); !ok || !k.Sealed || k.Token != "" || k.TokenMatches("") || k.TokenMatches("secret two") {
			t.Errorf("with %s: %+v", name, k)
		}
	}

	w.exec(`UPDATE consumer SET tokenSealed = CONCAT(LEFT(tokenSealed, LENGTH(tokenSealed) - 1), CHAR(ASCII(RIGHT(tokenSealed, 1)) ^ 1)) WHERE consumerId = 'by a given key'`)
	if k, _ := must(w.sealed(key).Catalog(w.ctx)).Consumer(w.channel, "by a given key"); !k.Sealed {
		t.Error("an altered token was read")
	}
	w.exec(`UPDATE consumer SET tokenSealed = 'short' WHERE consumerId = 'by a given key'`)
	if k, _ := must(w.sealed(key).Catalog(w.ctx)).Consumer(w.channel, "by a given key"); !k.Sealed {
		t.Error("a token cut short was read")
	}
}

// A rotation: the new key seals, the old one still opens, and once every token was put again the old key can go.
func TestSealKeysRotate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	oldKey, newKey := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	w.put(w.sealed(oldKey), "k", "the token")
	both := w.sealed(newKey, oldKey)
	k, ok := must(both.Catalog(w.ctx)).Consumer(w.channel, "k")
	if !ok || k.Token != "the token" {
		t.Fatalf("%+v", k)
	}
	must(both.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: "k", Name: "k", Token: "the token", IfUnmodifiedSince: &k.ChangedAt}}))
	if k, _ := must(w.sealed(newKey).Catalog(w.ctx)).Consumer(w.channel, "k"); k.Sealed || k.Token != "the token" {
		t.Errorf("with the new key alone: %+v", k)
	}
}

// A token that cannot be opened is an error in the log once for each change of its consumer.
func TestUnopenedTokensAreLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	keyed := w.sealed(bytes.Repeat([]byte{7}, 32))
	var log bytes.Buffer
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))})
	w.ok(err)
	defer func() { _ = s.Close() }()
	lines := func(want int) {
		t.Helper()
		must(s.Catalog(w.ctx))
		if n := strings.Count(log.String(), "REDRIVE_SEAL_KEY"); n != want || strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), "consumer=k") {
			t.Errorf("%d lines, want %d: %s", n, want, log.String())
		}
	}
	w.put(keyed, "k", "secret")
	lines(1)
	must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "another", Name: "another", Token: "t"}))
	lines(1)
	k, _ := must(keyed.Catalog(w.ctx)).Consumer(w.channel, "k")
	must(keyed.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: "k", Name: "k", Token: "secret", IfUnmodifiedSince: &k.ChangedAt}}))
	lines(2)
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
		"a short seal key": {DSN: "u:p@tcp(127.0.0.1:1)/d", SealKeys: [][]byte{[]byte("short")}},
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

func TestDerivedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a, again, b := must(w.DerivedKey(w.ctx, "a")), must(w.DerivedKey(w.ctx, "a")), must(w.DerivedKey(w.ctx, "b"))
	if len(a) != 32 || !bytes.Equal(a, again) || bytes.Equal(a, b) {
		t.Errorf("%x, %x and %x", a, again, b)
	}
	if before, now := time.Now().Add(-time.Hour), must(w.Now(w.ctx)); now.Before(before) || now.After(before.Add(2*time.Hour)) {
		t.Errorf("it is %s", now)
	}
}

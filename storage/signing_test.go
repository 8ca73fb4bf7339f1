package storage_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/redrive-mq/redrive/storage"
)

func consumerSubject(id string) storage.SigningSubject {
	return storage.SigningSubject{Kind: storage.SigningConsumer, ChannelID: "orders", ID: id}
}

func producerSubject() storage.SigningSubject {
	return storage.SigningSubject{Kind: storage.SigningProducer, ID: "shop"}
}

// signing are the secrets of a consumer of the channel, or of the producer where id is empty, as the store sees them now.
func (w *world) signing(s *storage.Store, id string) storage.SigningSecrets {
	w.t.Helper()
	cat := must(s.Catalog(w.ctx))
	if id == "" {
		p, _ := cat.Producer("shop")
		return p.Signing
	}
	k, ok := cat.Consumer(w.channel, id)
	if !ok {
		w.t.Fatalf("there is no consumer %s", id)
	}
	return k.Signing
}

func (w *world) secret(s *storage.Store, id string) string {
	w.t.Helper()
	revealed, ok := w.signing(s, id).Reveal()
	if !ok {
		w.t.Fatalf("%q has no secret", id)
	}
	return revealed.Secret
}

// fits tells whether the reference library takes a signature for one made with the secret.
func fits(t *testing.T, secret, id, timestamp, signatures string, body []byte) bool {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, timestamp)
	h.Set(standardwebhooks.HeaderWebhookSignature, signatures)
	return hook.Verify(body, h) == nil
}

func TestConsumersSignFromTheirFirstVersionOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	first := w.secret(w.another(), "k")
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(first, "whsec_"))
	if err != nil || !strings.HasPrefix(first, "whsec_") || len(key) != 32 {
		t.Errorf("a secret of %d bytes, %v", len(key), err)
	}
	if n := w.number(`SELECT COUNT(*) FROM signing_secret WHERE INSTR(secretSealed, ?) > 0`, key); n != 0 {
		t.Error("the secret is in the clear")
	}
	// Another version of the consumer keeps its secret, another consumer has another.
	must(w.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePull, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: "k", Name: "k", Token: "new", IfUnmodifiedSince: &k.ChangedAt}}))
	w.consumer("other", storage.TypePull)
	if again, other := w.secret(w.another(), "k"), w.secret(w.another(), "other"); again != first || other == first {
		t.Errorf("the secret changed with its consumer: %t; two have one: %t", again != first, other == first)
	}
	if !w.signing(w.Store, "").None() {
		t.Error("a producer has a secret that nobody asked for")
	}
	changed, _ := must(w.Catalog(w.ctx)).Consumer(w.channel, "k")
	w.ok(w.DeleteConsumer(w.ctx, changed.Key, changed.ChangedAt))
	if n := w.number(`SELECT COUNT(*) FROM signing_secret WHERE kind = 1 AND subjectId = ?`, k.Key); n != 0 {
		t.Errorf("%d secrets of a deleted consumer", n)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("k", storage.TypePush)
	other := w.another()
	for _, subject := range []storage.SigningSubject{consumerSubject("k"), producerSubject()} {
		t.Run(subject.String(), func(t *testing.T) {
			w := &world{Store: w.Store, t: t, ctx: t.Context(), dsn: w.dsn, channel: w.channel}
			id := strings.TrimPrefix(subject.ID, "shop")
			if id == "" { // of a producer, the first rotation is the opting in
				got := must(w.RotateSigningSecret(w.ctx, subject, "opt in", time.Hour))
				if !got.FormerUntil.IsZero() {
					t.Errorf("nothing was there before, and it retires at %v", got.FormerUntil)
				}
			}
			first := w.secret(other, id)
			version := must(other.Catalog(w.ctx)).Version()

			made := must(w.RotateSigningSecret(w.ctx, subject, "r1", time.Hour))
			if !made.FormerUntil.Equal(made.CreatedAt.Add(time.Hour)) {
				t.Errorf("made at %v, the former ones retire at %v", made.CreatedAt, made.FormerUntil)
			}
			second := w.secret(other, id)
			if second == first || must(other.Catalog(w.ctx)).Version() <= version {
				t.Error("another instance did not see the rotation")
			}
			version = must(other.Catalog(w.ctx)).Version()
			if again := must(other.RotateSigningSecret(w.ctx, subject, "r1", time.Minute)); again != made || w.secret(other, id) != second || must(other.Catalog(w.ctx)).Version() != version {
				t.Errorf("the same key again: %+v, want %+v and nothing changed", again, made)
			}

			signing, body := w.signing(other, id), []byte(`{"n":1}`)
			timestamp, signatures := signing.Sign("job", body)
			parts := strings.Split(signatures, " ")
			if len(parts) != 2 || !fits(t, second, "job", timestamp, parts[0], body) || !fits(t, first, "job", timestamp, parts[1], body) {
				t.Errorf("%d signatures, or not the newest first", len(parts))
			}
			for secret := range map[string]bool{first: true, second: true} {
				if !fits(t, secret, "job", timestamp, signatures, body) || fits(t, secret, "another", timestamp, signatures, body) {
					t.Error("the reference library does not see them as we do")
				}
			}
			revealed, _ := signing.Reveal()
			if len(revealed.Retiring) != 1 || !revealed.Retiring[0].Equal(made.FormerUntil) || !revealed.CreatedAt.Equal(made.CreatedAt) || revealed.Secret != second {
				t.Errorf("revealed: made at %v, retiring %v", revealed.CreatedAt, revealed.Retiring)
			}

			// Who retires already keeps the earlier end, whichever rotation sets it.
			must(w.RotateSigningSecret(w.ctx, subject, "r2", 2*time.Hour))
			third, _ := w.signing(w.Store, id).Reveal()
			if len(third.Retiring) != 2 || !third.Retiring[1].Equal(made.FormerUntil) || !third.Retiring[0].After(made.FormerUntil) {
				t.Errorf("after a longer overlap, retiring at %v", third.Retiring)
			}
			must(w.RotateSigningSecret(w.ctx, subject, "r3", 0))
			if last, _ := w.signing(w.Store, id).Reveal(); len(last.Retiring) != 0 || last.Secret == third.Secret {
				t.Errorf("after one without overlap, retiring at %v", last.Retiring)
			}
			if again := must(w.RotateSigningSecret(w.ctx, subject, "r1", 0)); again != made {
				t.Errorf("the same key after others: %+v, want %+v", again, made)
			}
		})
	}
}

func TestRotationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("k", storage.TypePush)
	version := must(w.Catalog(w.ctx)).Version()
	for _, subject := range []storage.SigningSubject{
		consumerSubject("nobody"), {Kind: storage.SigningConsumer, ChannelID: "nowhere", ID: "k"}, {Kind: storage.SigningProducer, ID: "k"},
	} {
		if _, err := w.RotateSigningSecret(w.ctx, subject, "r", 0); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	for name, rotate := range map[string]func() (storage.Rotation, error){
		"no key": func() (storage.Rotation, error) { return w.RotateSigningSecret(w.ctx, consumerSubject("k"), "", 0) },
		"a long key": func() (storage.Rotation, error) {
			return w.RotateSigningSecret(w.ctx, consumerSubject("k"), strings.Repeat("ä", 256), 0)
		},
		"not UTF-8":  func() (storage.Rotation, error) { return w.RotateSigningSecret(w.ctx, consumerSubject("k"), "\xff", 0) },
		"a past end": func() (storage.Rotation, error) { return w.RotateSigningSecret(w.ctx, consumerSubject("k"), "r", -1) },
		"a far end": func() (storage.Rotation, error) {
			return w.RotateSigningSecret(w.ctx, consumerSubject("k"), "r", 367*24*time.Hour)
		},
		"of no kind": func() (storage.Rotation, error) {
			return w.RotateSigningSecret(w.ctx, storage.SigningSubject{ID: "k"}, "r", 0)
		},
		"of two kinds": func() (storage.Rotation, error) {
			return w.RotateSigningSecret(w.ctx, storage.SigningSubject{Kind: 3, ID: "k"}, "r", 0)
		},
	} {
		if _, err := rotate(); err == nil {
			t.Errorf("%s: rotated", name)
		}
	}
	if n := w.number(`SELECT COUNT(*) FROM signing_secret`); n != 1 || must(w.Catalog(w.ctx)).Version() != version {
		t.Errorf("%d secrets after rotations that were refused", n)
	}
	must(w.RotateSigningSecret(w.ctx, consumerSubject("k"), strings.Repeat("ä", 255), 366*24*time.Hour))
}

// Many rotate at once: one key makes one secret, and whatever the keys there is one current secret in the end.
func TestRotationsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("k", storage.TypePush)
	const racers, keys = 8, 2
	rotations := make([]storage.Rotation, racers)
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		s := w.another()
		wg.Go(func() {
			rotations[i], errs[i] = s.RotateSigningSecret(w.ctx, consumerSubject("k"), fmt.Sprint(i%keys), time.Hour)
		})
	}
	wg.Wait()
	w.ok(errors.Join(errs...))
	for i, r := range rotations {
		if r != rotations[i%keys] {
			t.Errorf("one key made %+v and %+v", r, rotations[i%keys])
		}
	}
	if all, current := w.number(`SELECT COUNT(*) FROM signing_secret`), w.number(`SELECT COUNT(*) FROM signing_secret WHERE retiresAt IS NULL`); all != 1+keys || current != 1 {
		t.Errorf("%d secrets, %d of them current", all, current)
	}
	if _, signatures := w.signing(w.Store, "k").Sign("job", nil); strings.Count(signatures, "v1,") != 1+keys {
		t.Errorf("signed as %q", signatures)
	}
}

// A secret retires by the database's clock, in a catalog that nobody reloads; it is deleted later, a batch at a time.
func TestSecretsRetire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("k", storage.TypePush)
	var former string
	var made storage.Rotation
	var signing storage.SigningSecrets
	body := []byte("body")
	for overlap, inUse := 500*time.Millisecond, false; !inUse; overlap *= 2 { // longer where the catalog took longer to load
		former = w.secret(w.Store, "k")
		made = must(w.RotateSigningSecret(w.ctx, consumerSubject("k"), overlap.String(), overlap))
		signing = w.signing(w.Store, "k")
		timestamp, signatures := signing.Sign("job", body)
		if inUse = fits(t, former, "job", timestamp, signatures, body); !inUse && overlap > patience {
			t.Fatal("the former secret is never used")
		}
	}
	eventually(t, "the former secret retires", func() bool {
		before := must(w.Now(w.ctx))
		timestamp, signatures := signing.Sign("job", body)
		used := fits(t, former, "job", timestamp, signatures, body)
		if used && !before.Before(made.FormerUntil) {
			t.Fatalf("used at %v, it retired at %v", before, made.FormerUntil)
		}
		if n := must(strconv.ParseInt(timestamp, 10, 64)); n < before.Unix() || n > must(w.Now(w.ctx)).Unix()+5 {
			t.Fatalf("signed at %d, it is %v", n, before)
		}
		return !used
	})
	if revealed, _ := signing.Reveal(); len(revealed.Retiring) != 0 {
		t.Errorf("still retiring: %v", revealed.Retiring)
	}
	w.exec(`DELETE FROM signing_secret WHERE retiresAt IS NOT NULL`)

	for i := range 4 {
		must(w.RotateSigningSecret(w.ctx, consumerSubject("k"), fmt.Sprint(i), 0))
	}
	must(w.RotateSigningSecret(w.ctx, consumerSubject("k"), "last", time.Hour))
	secret := w.secret(w.Store, "k")
	for _, want := range []struct {
		retired int64
		more    bool
	}{{3, true}, {1, false}, {0, false}} {
		version := must(w.Catalog(w.ctx)).Version()
		retired, more, err := w.RetireSigningSecrets(w.ctx, 3)
		if err != nil || retired != want.retired || more != want.more {
			t.Errorf("retired %d, more %t, %v; want %+v", retired, more, err, want)
		}
		if rose := must(w.Catalog(w.ctx)).Version() > version; rose != (want.retired > 0) {
			t.Errorf("after %d retired the version rose: %t", want.retired, rose)
		}
	}
	if n := w.number(`SELECT COUNT(*) FROM signing_secret`); n != 2 || w.secret(w.Store, "k") != secret {
		t.Errorf("%d secrets are left, want the current one and the one that retires in an hour", n)
	}
}

// Consumers of a version without signatures get their first secret once, whoever gives it to them.
func TestSecretsForThoseWhoHaveNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for i := range 9 {
		w.consumer(fmt.Sprint("k", i), storage.TypePush)
	}
	w.engine("hmac", rotationQueue) // has none, and gets none
	kept := w.secret(w.Store, "k3")
	w.exec(`DELETE FROM signing_secret WHERE subjectId <> (SELECT id FROM consumer WHERE consumerId = 'k3')`)
	if made, more, err := w.EnsureSigningSecrets(w.ctx, 2); err != nil || made != 2 || !more {
		t.Errorf("a batch of 2 made %d, more %t, %v", made, more, err)
	}
	var wg sync.WaitGroup
	total, errs := make([]int, 4), make([]error, 4)
	for i := range total {
		s := w.another()
		wg.Go(func() {
			for more := true; more && errs[i] == nil; {
				var made int
				made, more, errs[i] = s.EnsureSigningSecrets(w.ctx, 2)
				total[i] += made
			}
		})
	}
	wg.Wait()
	w.ok(errors.Join(errs...))
	if sum := total[0] + total[1] + total[2] + total[3]; sum != 6 {
		t.Errorf("%v made, 6 were missing", total)
	}
	seen := map[string]bool{}
	for i := range 9 {
		seen[w.secret(w.another(), fmt.Sprint("k", i))] = true
	}
	if len(seen) != 9 || !seen[kept] || w.number(`SELECT COUNT(*) FROM signing_secret`) != 9 {
		t.Errorf("%d secrets; the one that was there is kept: %t", len(seen), seen[kept])
	}
	version := must(w.Catalog(w.ctx)).Version()
	if made, more, err := w.EnsureSigningSecrets(w.ctx, 2); err != nil || made != 0 || more || must(w.Catalog(w.ctx)).Version() != version {
		t.Errorf("once all have theirs: made %d, more %t, %v", made, more, err)
	}
}

// A secret that cannot be opened costs its subject alone, and is an error in the log once.
func TestUnopenedSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("k", storage.TypePush)
	w.consumer("fine", storage.TypePush)
	keyed := w.sealed(bytes.Repeat([]byte{7}, 32))
	must(keyed.RotateSigningSecret(w.ctx, consumerSubject("k"), "r", time.Hour))
	must(keyed.RotateSigningSecret(w.ctx, producerSubject(), "r", time.Hour))
	var log bytes.Buffer
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.ok(err)
	defer func() { _ = s.Close() }()
	for range 2 {
		cat := must(s.Catalog(w.ctx))
		k, _ := cat.Consumer(w.channel, "k")
		p, _ := cat.Producer("shop")
		fine, _ := cat.Consumer(w.channel, "fine")
		if !k.Sealed || !p.Sealed || fine.Sealed || fine.Signing.None() || k.TokenMatches("k-token") {
			t.Errorf("sealed: k %t, producer %t, fine %t", k.Sealed, p.Sealed, fine.Sealed)
		}
		must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: storage.NewID().String(), Name: "n", Token: "t"})) // loads again
	}
	if n := strings.Count(log.String(), "signing secrets cannot be opened"); n != 2 || !strings.Contains(log.String(), "consumer:orders/k") {
		t.Errorf("%d lines: %s", n, log.String())
	}
	w.exec(`UPDATE signing_secret SET retiresAt = NOW(6) - INTERVAL 1 SECOND WHERE kind = 2`)
	w.exec(`UPDATE catalog SET version = version + 1`)
	if p, _ := must(s.Catalog(w.ctx)).Producer("shop"); p.Sealed {
		t.Error("a producer is left out for a secret that has retired")
	}
}

// A PUT seals the secrets with the current key as well, so that after all were put the key before can go.
func TestSealKeysOfSecretsRotate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	oldKey, newKey := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	old := w.sealed(oldKey)
	w.put(old, "k", "t")
	must(old.RotateSigningSecret(w.ctx, consumerSubject("k"), "r", time.Hour))
	must(old.RotateSigningSecret(w.ctx, producerSubject(), "r", time.Hour))
	ofConsumer, ofProducer := w.secret(old, "k"), w.secret(old, "")
	both := w.sealed(newKey, oldKey)
	k, _ := must(both.Catalog(w.ctx)).Consumer(w.channel, "k")
	must(both.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
		PutStakeholder: storage.PutStakeholder{ID: "k", Name: "k", Token: "t", IfUnmodifiedSince: &k.ChangedAt}}))
	must(both.PutProducer(w.ctx, storage.PutStakeholder{ID: "shop", Name: "Shop", Token: "t", IfUnmodifiedSince: &w.producer.ChangedAt}))
	alone := w.sealed(newKey)
	if w.secret(alone, "k") != ofConsumer || w.secret(alone, "") != ofProducer {
		t.Error("other secrets with the new key alone")
	}
	if k, _ := must(alone.Catalog(w.ctx)).Consumer(w.channel, "k"); k.Sealed {
		t.Error("with the new key alone the consumer is left out: its former secret was not sealed anew")
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	must(w.RotateSigningSecret(w.ctx, producerSubject(), "r1", 0))
	former := w.secret(w.Store, "")
	must(w.RotateSigningSecret(w.ctx, producerSubject(), "r2", time.Hour))
	signing, body := w.signing(w.Store, ""), []byte("body")
	sign := func(secret string) string {
		return must(must(standardwebhooks.NewWebhook(secret)).Sign("id", time.Unix(1700000000, 0), body))
	}
	current, old, foreign := sign(w.secret(w.Store, "")), sign(former), sign("whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	const ts = "1700000000"
	for _, tc := range []struct {
		name, id, timestamp, signatures, body string
		want                                  bool
	}{
		{"the current secret", "id", ts, current, "body", true},
		{"a retiring secret", "id", ts, old, "body", true},
		{"among others", "id", ts, "v1a,xyz v2," + current[3:] + " v1,!! v1, " + foreign + " " + old, "body", true},
		{"as the 16th", "id", ts, strings.Repeat(foreign+" ", 15) + current, "body", true},
		{"as the 17th", "id", ts, strings.Repeat(foreign+" ", 16) + current, "body", false},
		{"another secret", "id", ts, foreign, "body", false},
		{"another id", "ie", ts, current, "body", false},
		{"another time", "id", "1700000001", current, "body", false},
		{"another body", "id", ts, current, "body ", false},
		{"another version", "id", ts, "v2," + current[3:], "body", false},
		{"no version", "id", ts, current[3:], "body", false},
		{"cut short", "id", ts, current[:20], "body", false},
		{"none", "id", ts, "", "body", false},
	} {
		if got := signing.Verify(tc.id, tc.timestamp, tc.signatures, []byte(tc.body)); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
	var none storage.SigningSecrets
	if timestamp, signatures := none.Sign("id", body); timestamp != "" || signatures != "" || none.Verify("id", ts, current, body) {
		t.Error("without secrets something is signed or verified")
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	k, _ = must(w.Catalog(w.ctx)).ConsumerByKey(k.Key)
	secret := strings.TrimPrefix(w.secret(w.Store, "k"), "whsec_")
	raw := must(base64.StdEncoding.DecodeString(secret))
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		for _, v := range []any{k.Signing, *k} {
			if got := fmt.Sprintf(format, v); strings.Contains(got, secret) || strings.Contains(got, string(raw)) ||
				strings.Contains(got, fmt.Sprint(raw[:4])[1:8]) || strings.Contains(got, fmt.Sprintf("%x", raw[:4])) {
				t.Errorf("%s shows %s", format, got)
			}
		}
	}
}

func TestSigningSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.consumer("a/b", storage.TypePush)
	if got := must(w.SigningSubjects(w.ctx)); len(got) != 1 || got[0].String() != "consumer:orders/a%2Fb" {
		t.Errorf("%v", got)
	}
	made := must(w.RotateSigningSecret(w.ctx, producerSubject(), "r", time.Hour))
	w.consumer("c", storage.TypePull)
	rotated := must(w.RotateSigningSecret(w.ctx, consumerSubject("a/b"), "r", time.Hour))
	got := must(w.SigningSubjects(w.ctx))
	if len(got) != 3 || got[0].String() != "consumer:orders/c" || got[1].String() != "consumer:orders/a%2Fb" || got[2].String() != "producer:shop" ||
		!got[1].CreatedAt.Equal(rotated.CreatedAt) || !got[2].CreatedAt.Equal(made.CreatedAt) {
		t.Errorf("%v", got)
	}
}

func TestSubjectsAsText(t *testing.T) {
	t.Parallel()
	for _, s := range []storage.SigningSubject{
		consumerSubject("k"), {Kind: storage.SigningConsumer, ChannelID: "a/b:c%2F", ID: "//"}, {Kind: storage.SigningProducer, ID: "p"},
		{Kind: storage.SigningProducer, ID: "a/b"}, {Kind: storage.SigningProducer, ID: "consumer:x/y"}, {Kind: storage.SigningConsumer, ChannelID: "ä ö", ID: "producer:"},
		{Kind: storage.SigningProducer, ID: strings.Repeat("/", 255)},
	} {
		if got, err := storage.ParseSigningSubject(s.String()); err != nil || got != s {
			t.Errorf("%s is read as %+v, %v", s, got, err)
		}
	}
	if got, err := storage.ParseSigningSubject("producer:%41"); err != nil || got.String() != "producer:A" {
		t.Errorf("an escape that is not needed: %v, %v", got, err)
	}
	for _, bad := range []string{"", "k", "consumer:", "consumer:c", "consumer:c/", "consumer:/k", "consumer:c/k/", "producer:", "producer:a/b", "channel:c",
		"Producer:p", "producer:%", "producer:%zz", "producer:%ff", "producer:" + strings.Repeat("x", 256)} {
		if got, err := storage.ParseSigningSubject(bad); err == nil || got != (storage.SigningSubject{}) {
			t.Errorf("%q is read as %+v, %v", bad, got, err)
		}
	}
}

// Signs 1 KiB, as each push does.
//
//	go test ./storage -run xxx -bench Sign
func BenchmarkSign(b *testing.B) {
	w := newWorld(b, nil)
	w.consumer("k", storage.TypePush)
	signing, body, id := w.signing(w.Store, "k"), make([]byte, 1024), storage.NewID().String()
	b.ReportAllocs()
	for b.Loop() {
		signing.Sign(id, body)
	}
}

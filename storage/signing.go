package storage

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

const (
	signingKeySize   = 32 // bytes; the specification allows 24 to 64
	secretPrefix     = "whsec_"
	signatureVersion = "v1,"
	// maxSignatures bounds the signatures that are looked at: one for each secret while secrets rotate, and some to spare.
	maxSignatures = 16
)

// SigningSecrets are the secrets that sign what a consumer is sent, or what a producer sends, by the Standard Webhooks
// specification. A secret is used until it retires, by the database's clock. The zero value has none. It never changes, and
// printing it shows no secret.
type SigningSecrets struct {
	clock    databaseClock
	secrets  []signingSecret // the current one first, then the newest
	unopened ID              // the first one that none of this instance's keys opens; zero: all were opened
}

type signingSecret struct {
	id        ID
	key       []byte
	createdAt time.Time
	retiresAt time.Time // zero: it is the current one
}

// RevealedSecret is what the owner of a secret gets to see.
type RevealedSecret struct {
	Secret    string // whsec_ and base64
	CreatedAt time.Time
	Retiring  []time.Time // when the former secrets that are still valid retire, the newest first
}

// Format keeps secrets out of whatever is printed.
func (s SigningSecrets) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[signing secrets]") }

// None tells that there are no secrets: nothing is signed, and nothing has to be.
func (s SigningSecrets) None() bool { return len(s.secrets) == 0 }

// Current is the id of the newest secret, zero where there is none: another one after each rotation.
func (s SigningSecrets) Current() ID {
	if s.None() {
		return ID{}
	}
	return s.secrets[0].id
}

// Reveal shows the current secret; false: there is none.
func (s SigningSecrets) Reveal() (RevealedSecret, bool) {
	if s.None() {
		return RevealedSecret{}, false
	}
	current := s.secrets[0]
	out := RevealedSecret{Secret: secretPrefix + base64.StdEncoding.EncodeToString(current.key), CreatedAt: current.createdAt}
	for secret := range s.valid(s.clock.now()) {
		if !secret.retiresAt.IsZero() {
			out.Retiring = append(out.Retiring, secret.retiresAt)
		}
	}
	return out, true
}

// valid yields the secrets that have not retired, the newest first.
func (s SigningSecrets) valid(now time.Time) func(yield func(signingSecret) bool) {
	return func(yield func(signingSecret) bool) {
		for _, secret := range s.secrets {
			if (secret.retiresAt.IsZero() || now.Before(secret.retiresAt)) && !yield(secret) {
				return
			}
		}
	}
}

// Sign signs a body under an id, which has no full stop, for the present time of the database. It returns the values of
// webhook-timestamp (unix seconds) and of webhook-signature (one for each valid secret, the newest first, with spaces
// between); both are empty where there are no secrets.
func (s SigningSecrets) Sign(id string, body []byte) (timestamp, signatures string) {
	if s.None() {
		return "", ""
	}
	now := s.clock.now()
	timestamp = strconv.FormatInt(now.Unix(), 10)
	var out []byte
	for secret := range s.valid(now) {
		if out != nil {
			out = append(out, ' ')
		}
		out = base64.StdEncoding.AppendEncode(append(out, signatureVersion...), secret.sum(id, timestamp, body))
	}
	return timestamp, string(out)
}

// Verify tells whether one of the signatures, as of webhook-signature, was made with a valid secret over that id, timestamp and
// body. It compares in constant time, skips signatures of other versions and malformed ones, looks at 16 of its own at
// most, and leaves it to the caller whether the timestamp is near enough and the id has no full stop.
func (s SigningSecrets) Verify(id, timestamp, signatures string, body []byte) bool {
	var sums [][]byte
	for part := range strings.SplitSeq(signatures, " ") {
		text, ok := strings.CutPrefix(part, signatureVersion)
		if !ok {
			continue
		}
		if sum, err := base64.StdEncoding.DecodeString(text); err == nil && len(sum) == sha256.Size && len(sums) < maxSignatures {
			sums = append(sums, sum)
		}
	}
	found := false
	for secret := range s.valid(s.clock.now()) {
		want := secret.sum(id, timestamp, body)
		for _, sum := range sums {
			found = hmac.Equal(want, sum) || found
		}
	}
	return found
}

func (s signingSecret) sum(id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	_, _ = io.WriteString(mac, id+"."+timestamp+".")
	_, _ = mac.Write(body)
	return mac.Sum(nil)
}

func newSigningKey() []byte {
	key := make([]byte, signingKeySize)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	return key
}

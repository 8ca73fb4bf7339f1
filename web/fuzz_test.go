package web

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/storage"
)

// What parses is exactly what was made: no cursor has two forms.
func FuzzCursor(f *testing.F) {
	id := storage.ID{1, 2, 3}
	for _, p := range []place{
		{kind: placeKey, key: 7}, {kind: placeID, id: id}, {kind: placeDeath, id: id, at: time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)},
		{kind: placeDeath, at: earliest}, {kind: placeDeath, at: latest}, {kind: placeDeath, at: latest.Add(time.Second)},
	} {
		f.Add(p.kind, p.String())
	}
	f.Add(byte(placeKey), "")
	f.Add(byte(placeKey), "AWsAAAAHAA")
	f.Add(byte('x'), "AXg")
	f.Fuzz(func(t *testing.T, kind byte, cursor string) {
		p, ok := parsePlace(kind, cursor)
		if !ok {
			return
		}
		if p.String() != cursor {
			t.Fatalf("%q parses as %+v, which is %q", cursor, p, p.String())
		}
		if kind == placeDeath && (p.at.Before(earliest) || p.at.After(latest)) {
			t.Fatalf("the database cannot have %v", p.at)
		}
		r := httptest.NewRequest("GET", "/?"+url.Values{"next": {cursor}}.Encode(), nil)
		if q, err := parsePage(r, kind); err != nil || !q.older || *q.from != p {
			t.Fatalf("a page from %q is %+v, %v", cursor, q, err)
		}
	})
}

func TestCursorsOfAllKindsComeBack(t *testing.T) {
	t.Parallel()
	for _, p := range []place{
		{kind: placeKey}, {kind: placeKey, key: 1<<32 - 1}, {kind: placeID, id: storage.NewID()},
		{kind: placeDeath, id: storage.NewID(), at: time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)},
	} {
		if got, ok := parsePlace(p.kind, p.String()); !ok || got != p {
			t.Errorf("%+v came back as %+v", p, got)
		}
		for _, other := range []byte{placeKey, placeID, placeDeath, 'x'} {
			if _, ok := parsePlace(other, p.String()); ok != (other == p.kind) {
				t.Errorf("%+v as a cursor of kind %q: %v", p, other, ok)
			}
		}
	}
}

// Nothing that is picked can break a delivery's header or pose as one of the broker's.
func FuzzMetadataHeaders(f *testing.F) {
	for _, list := range []string{"", "X-A", "x-a, X-B,,X-A", "Host", "X-A\r\nX-Injected: 1", "connection", "x-broker-message-id", "X-Absent", "a b", "\x00"} {
		f.Add(list, "one", "two")
	}
	f.Add("X-A", "a\r\nb", "\xff")
	f.Add("X-B,X-Hop", strings.Repeat("x", maxMetadataBytes), "y")
	f.Fuzz(func(t *testing.T, list, a, b string) {
		h := http.Header{headerMetadata: {list}, "X-A": {a}, "X-B": {b, a}, "Host": {b}, "X-Hop": {a}, "Connection": {"x-hop"}}
		got, err := metadataHeaders(h)
		if err != nil {
			return
		}
		size := 0
		for name, value := range got {
			size += len(name) + len(value)
			canonical := http.CanonicalHeaderKey(name)
			if !isToken(name) || notMetadata[canonical] || strings.HasPrefix(canonical, "X-Broker-") || canonical == "X-Hop" || len(h[canonical]) == 0 {
				t.Fatalf("%q was picked", name)
			}
			if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
				t.Fatalf("%q was picked with %q", name, value)
			}
		}
		if len(got) > maxMetadataHeaders || size > maxMetadataBytes {
			t.Fatalf("%d headers with %d bytes were picked", len(got), size)
		}
	})
}

func FuzzGatewaySignature(f *testing.F) {
	secret, now := []byte("secret"), time.Unix(1893499200, 0)
	sum := strings.Repeat("0a", 32)
	for _, header := range []string{
		"", "t=1,v1=" + sum, "t=1893499200, v1=" + sum + ",v1=" + sum, "t=1,t=2,v1=" + sum, "t=-1,v1=" + sum, "t=+1,v1=" + sum,
		"t=99999999999999999999,v1=" + sum, "v1=" + sum, "t=1", "t=1,v1=", "t=1,v1=zz", "t=1;v1=" + sum, "v0=x,t=1,v1=" + sum + ",",
	} {
		f.Add(header, []byte("body"))
	}
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		sig, ok := parseSignature(header)
		if !ok {
			return
		}
		if len(sig.sums) == 0 || len(sig.sums) > maxSignatures || !strings.Contains(header, sig.timestamp) {
			t.Fatalf("%q parses as %+v", header, sig)
		}
		if sig.matches(secret, body) && !strings.Contains(strings.ToLower(header), hex.EncodeToString(sig.sums[0])) {
			t.Fatalf("%q matches", header)
		}
		if away := sig.at.Sub(now).Abs(); sig.fresh(now) != (away <= signatureTolerance) {
			t.Fatalf("%q is %v away, fresh: %v", header, away, sig.fresh(now))
		}
	})
}

// A form that is taken gives texts that can go into the database and into headers.
func FuzzForm(f *testing.F) {
	for _, body := range []string{"", "token=a&name=b", "token=%00", "name=%FF", "a=%zz", "a;b", "token=a&token=b", "name=+a", "callbackUrl=http%3A%2F%2Fx.example", "callbackUrl=http://[::1%25eth0]/"} {
		f.Add("application/x-www-form-urlencoded; charset=utf-8", body)
	}
	f.Add("text/plain", "a")
	f.Add("application/x-www-form-urlencoded; =", "a")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		if isForm(contentType) && !strings.Contains(strings.ToLower(contentType), typeForm) {
			t.Fatalf("%q is a form", contentType)
		}
		form, err := parseForm([]byte(body))
		if err != nil {
			return
		}
		r := httptest.NewRequest("PUT", "/", nil)
		if put, err := stakeholderForm(r, "id", form); err == nil {
			for _, text := range []string{put.Name, put.Token} {
				if text == "" || len(text) > maxID || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
					t.Fatalf("%q was taken", text)
				}
			}
		}
		if raw := form.Get("callbackUrl"); CheckCallbackURL(raw, false) == nil {
			u, err := url.Parse(raw)
			if err != nil || u.Host == "" || isPrivateHost(u.Hostname()) || len(raw) > maxCallbackURL || strings.ContainsFunc(raw, unicode.IsControl) {
				t.Fatalf("%q was taken", raw)
			}
		}
	})
}

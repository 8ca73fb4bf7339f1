package web

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	headerSignature    = "X-Broker-Signature"
	signatureTolerance = 300 * time.Second
	// maxSignatures bounds the signatures of one header: one for each secret while secrets rotate, and some to spare.
	maxSignatures = 16
)

// DefaultGatewayExempt are the prefixes of paths that need no gateway signature: what a monitor or an orchestrator
// asks for.
func DefaultGatewayExempt() []string {
	return []string{"/_status", "/metrics", "/debug/pprof/", "/livez", "/readyz"}
}

// signature is what X-Broker-Signature says.
type signature struct {
	timestamp string // unix seconds, as it was signed
	at        time.Time
	sums      [][]byte
}

// parseSignature reads "t=<unix seconds>,v1=<hex>[,v1=<hex>...]". Parts of other versions are skipped.
func parseSignature(header string) (signature, bool) {
	var sig signature
	for part := range strings.SplitSeq(header, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return sig, false
		}
		switch key {
		case "t":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err != nil || seconds < 0 || sig.timestamp != "" {
				return sig, false
			}
			sig.timestamp, sig.at = value, time.Unix(seconds, 0)
		case "v1":
			sum, err := hex.DecodeString(value)
			if err != nil || len(sum) != sha256.Size || len(sig.sums) == maxSignatures {
				return sig, false
			}
			sig.sums = append(sig.sums, sum)
		}
	}
	return sig, sig.timestamp != "" && len(sig.sums) > 0
}

// fresh tells whether the signature's time is near enough to now, before or after it.
func (sig signature) fresh(now time.Time) bool {
	// Compared as seconds: a duration overflows for times that an attacker may choose.
	away := sig.at.Unix() - now.Unix()
	return away <= int64(signatureTolerance/time.Second) && away >= -int64(signatureTolerance/time.Second)
}

// matches tells whether one of the signatures is of this body with this secret.
func (sig signature) matches(secret, body []byte) bool {
	mac := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(mac, sig.timestamp+".")
	_, _ = mac.Write(body)
	want, found := mac.Sum(nil), false
	for _, sum := range sig.sums {
		found = hmac.Equal(want, sum) || found
	}
	return found
}

// gateway demands a signature on every request but those under an exempt prefix.
func (s *Server) gateway(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, prefix := range s.o.GatewayExempt {
			if strings.HasPrefix(r.URL.Path, prefix) {
				next.ServeHTTP(w, r)
				return
			}
		}
		body, err := s.signedBody(w, r)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// signedBody reads the body of a request whose signature is right. What can be refused by the header alone is refused
// without reading the body.
func (s *Server) signedBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	header := r.Header.Get(headerSignature)
	if header == "" {
		return nil, unauthorized(headerSignature + " is missing")
	}
	sig, ok := parseSignature(header)
	if !ok {
		return nil, unauthorized(headerSignature + " is malformed")
	}
	if !sig.fresh(s.now()) {
		return nil, forbidden("the signature is too old, or its time is ahead of ours")
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	if !sig.matches(s.o.GatewaySecret, body) {
		return nil, forbidden("the signature does not match")
	}
	return body, nil
}

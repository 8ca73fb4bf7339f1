package web

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	headerMetadata = "X-Broker-Metadata-Headers"

	maxMetadataHeaders = 64
	maxMetadataBytes   = 16 << 10 // of names and values together
)

// notMetadata are the headers that no producer may have passed on: they belong to one connection or one body, or the
// broker sets them itself on a delivery.
var notMetadata = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Expect": true,
	"Host": true, "Content-Length": true, "Content-Type": true, "User-Agent": true, headerRequestIDCanonical: true,
}

const headerRequestIDCanonical = "X-Request-Id"

// metadataHeaders picks the headers that X-Broker-Metadata-Headers names, by the names as they are given there. Names
// that the request has no header of are skipped, and so are those that must not be passed on: clients of the wire
// contract know no error for them. Of a header that came several times the values are joined by commas, as RFC 9110
// has it.
func metadataHeaders(h http.Header) (map[string]string, error) {
	list := strings.Join(h.Values(headerMetadata), ",")
	if len(list) > maxMetadataBytes {
		return nil, badRequest(headerMetadata + " is longer than 16 KiB")
	}
	if strings.ContainsFunc(list, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
		return nil, badRequest(headerMetadata + " has a control character")
	}
	picked := map[string]string{}
	seen := map[string]bool{}
	size := 0
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.Trim(name, " \t"); name == "" {
			continue
		}
		if strings.ContainsRune(name, '\t') {
			return nil, badRequest(headerMetadata + " has a name with a tab in it")
		}
		canonical := http.CanonicalHeaderKey(name)
		if seen[canonical] {
			continue
		}
		if seen[canonical] = true; len(seen) > maxMetadataHeaders {
			return nil, badRequest(headerMetadata + " names more than 64 headers")
		}
		values := h[canonical]
		if len(values) == 0 || !isToken(name) || notMetadata[canonical] || strings.HasPrefix(canonical, "X-Broker-") || strings.HasPrefix(canonical, prefixWebhook) || isConnectionOption(h, canonical) {
			continue
		}
		value := strings.Join(values, ", ")
		if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, badRequest(headerMetadata + ": the value of " + canonical + " has bytes that cannot be passed on")
		}
		if size += len(name) + len(value); size > maxMetadataBytes {
			return nil, badRequest("the metadata headers are larger than 16 KiB together")
		}
		picked[name] = value
	}
	return picked, nil
}

// isConnectionOption tells headers that the request's Connection header declares to be of this connection only.
func isConnectionOption(h http.Header, canonical string) bool {
	for _, line := range h["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(option), canonical) {
				return true
			}
		}
	}
	return false
}

// isToken tells RFC 9110 tokens.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// continuation is where a list of a table goes on. It names the last row that was shown and not a number of rows, so
// that rows that come and go meanwhile neither repeat nor hide others.
//
// On the wire it is base64url without padding of a version byte, a byte for the kind, the fingerprint of the filters,
// the time in microseconds, the length of the engine, the engine, the row key, and a truncated HMAC-SHA-256 of all
// that. A token is no secret, and the key keeps no secret either: it keeps clients from building on what a token
// looks like, and from asking the database for what no page could have led to.
type continuation struct {
	kind   byte
	filter [fingerprintSize]byte
	after  storage.TableCursor // microseconds
}

const (
	tokenVersion    = 1
	fingerprintSize = 8
	tokenMACSize    = 16
	tokenHead       = 2 + fingerprintSize + 8 + 2
	// maxToken is the longest token that there can be, in bytes: UTF-8 has at most four a character.
	maxToken = (tokenHead + 4*maxEngineName + 4*maxRowKey + tokenMACSize + 2) / 3 * 4

	tokenDeadLetters  = 'l'
	tokenHistory      = 'h'
	tokenDestinations = 'd' // its row key is the consumer's, by number

	// tokenLabel keeps what this key authenticates here apart from anything else that it may be used for.
	tokenLabel = "redrive continuation token\x00"
)

// fingerprint tells filters apart.
func fingerprint(kind byte, filter map[string]string) (out [fingerprintSize]byte) {
	h := sha256.New()
	write := func(text string) {
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
		_, _ = h.Write([]byte(text))
	}
	write(string(kind))
	for _, name := range slices.Sorted(maps.Keys(filter)) {
		write(name)
		write(filter[name])
	}
	copy(out[:], h.Sum(nil))
	return out
}

func tokenMAC(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(tokenLabel))
	_, _ = mac.Write(body)
	return mac.Sum(nil)[:tokenMACSize]
}

// sealToken makes a token.
func sealToken(key []byte, c continuation) string {
	b := append([]byte{tokenVersion, c.kind}, c.filter[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.after.At.UnixMicro()))
	b = binary.BigEndian.AppendUint16(b, uint16(len(c.after.Engine)))
	b = append(b, c.after.Engine...)
	b = append(b, c.after.RowKey...)
	return base64.RawURLEncoding.EncodeToString(append(b, tokenMAC(key, b)...))
}

// openToken reads a token. It takes exactly what sealToken made with the key.
func openToken(key []byte, token string) (continuation, bool) {
	var c continuation
	if len(token) > maxToken {
		return c, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) < tokenHead+tokenMACSize {
		return c, false
	}
	body, mac := b[:len(b)-tokenMACSize], b[len(b)-tokenMACSize:]
	if !hmac.Equal(mac, tokenMAC(key, body)) || body[0] != tokenVersion {
		return c, false
	}
	c.kind = body[1]
	body = body[2+copy(c.filter[:], body[2:]):]
	c.after.At = time.UnixMicro(int64(binary.BigEndian.Uint64(body))).UTC()
	engine := int(binary.BigEndian.Uint16(body[8:]))
	if body = body[10:]; engine > len(body) || c.after.At.Before(earliest) || c.after.At.After(latest) {
		return c, false
	}
	c.after.Engine, c.after.RowKey = string(body[:engine]), string(body[engine:])
	// The decoder skips line breaks, which are in no token.
	return c, sealToken(key, c) == token
}

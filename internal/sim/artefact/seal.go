package artefact

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// A sealed value is magic, kind, length of the JSON, its SHA-256 and the JSON: any missing
// or changed byte is detected.
const (
	sealMagic  = "LABSEAL1"
	sealHeader = len(sealMagic) + kindBytes + 8 + sha256.Size
	kindBytes  = 4
)

func seal(kind string, value any) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // a command line must be findable in the bytes
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	sum := sha256.Sum256(body.Bytes())
	b := make([]byte, 0, sealHeader+body.Len())
	b = append(b, sealMagic...)
	b = append(b, kind...)
	b = binary.BigEndian.AppendUint64(b, uint64(body.Len()))
	b = append(b, sum[:]...)
	return append(b, body.Bytes()...), nil
}

// unseal reads a sealed value and returns the bytes after it.
func unseal(kind string, b []byte, value any) (rest []byte, err error) {
	if len(b) < sealHeader {
		return nil, fmt.Errorf("%d bytes are too few", len(b))
	}
	if string(b[:len(sealMagic)]) != sealMagic {
		return nil, errors.New("no magic number")
	}
	head := b[len(sealMagic):]
	if got := string(head[:kindBytes]); got != kind {
		return nil, fmt.Errorf("holds %q, not %q", got, kind)
	}
	size := binary.BigEndian.Uint64(head[kindBytes:])
	body := b[sealHeader:]
	if size > uint64(len(body)) {
		return nil, fmt.Errorf("truncated: %d of %d bytes", len(body), size)
	}
	body, rest = body[:size], body[size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], head[kindBytes+8:][:sha256.Size]) {
		return nil, errors.New("damaged: the checksum does not match")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(value); err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind, err)
	}
	return rest, nil
}

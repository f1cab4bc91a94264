package bootimage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// signatureList is a list of certificates as a variable has it.
func signatureList(kind string, certificates ...string) []byte {
	b := []byte(kind)
	each := ownerBytes + len(certificates[0])
	for _, n := range []int{listHeader + each*len(certificates), 0, each} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, c := range certificates {
		b = append(append(b, make([]byte, ownerBytes)...), c...)
	}
	return b
}

// variable is an authenticated variable with a signature of no meaning.
func variable(lists ...[]byte) []byte {
	b := make([]byte, authTimeBytes)
	b = binary.LittleEndian.AppendUint32(b, authMinBytes+9)
	b = append(b, 0, 2, 0xf1, 0x0e)
	b = append(b, make([]byte, 16)...)
	return append(append(b, "signature"...), slices.Concat(lists...)...)
}

func espWith(files map[string][]byte) *ESP {
	e := &ESP{enrol: map[string]*io.SectionReader{}}
	for name, b := range files {
		e.enrol[name] = io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
	}
	return e
}

func TestEnrolled(t *testing.T) {
	t.Parallel()
	sum := func(text string) string {
		s := sha256.Sum256([]byte(text))
		return hex.EncodeToString(s[:])
	}
	armoured := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("one")}))
	whole := variable(signatureList(certificateKey, "one"))
	for name, test := range map[string]struct {
		files map[string][]byte
		want  []string
		fails string
	}{
		"no keys":             {nil, nil, ""},
		"the same thrice":     {map[string][]byte{"pk.auth": whole, "kek.auth": whole, "db.auth": whole}, []string{sum("one")}, ""},
		"as PEM":              {map[string][]byte{"pk.auth": variable(signatureList(certificateKey, armoured))}, []string{sum("one")}, ""},
		"two in a list":       {map[string][]byte{"db.auth": variable(signatureList(certificateKey, "one", "two"))}, []string{sum("one"), sum("two")}, ""},
		"two lists":           {map[string][]byte{"db.auth": variable(signatureList(certificateKey, "one"), signatureList(certificateKey, "three"))}, []string{sum("one"), sum("three")}, ""},
		"a hash":              {map[string][]byte{"db.auth": variable(signatureList(strings.Repeat("h", 16), "one"))}, nil, "db.auth: damaged or of a foreign format: a list of something other than certificates"},
		"nothing":             {map[string][]byte{"db.auth": variable()}, nil, "no certificate"},
		"a certificate":       {map[string][]byte{"db.auth": []byte(strings.Repeat("x", 99))}, nil, "no authenticated variable"},
		"cut in a list":       {map[string][]byte{"db.auth": whole[:len(whole)-1]}, nil, "a list of certificates is cut off"},
		"cut in its header":   {map[string][]byte{"db.auth": whole[:len(whole)-30]}, nil, "a list of something other than certificates"},
		"cut in a signature":  {map[string][]byte{"db.auth": whole[:authTimeBytes+authMinBytes+3]}, nil, "its signature is cut off"},
		"more than Talos has": {map[string][]byte{"db.auth": make([]byte, maxEnrolled+1)}, nil, "db.auth: damaged or of a foreign format: it has 65537 bytes"},
	} {
		slices.Sort(test.want)
		got, err := espWith(test.files).Enrolled()
		if !slices.Equal(got, test.want) || (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %q, err = %v; want %q, %q", name, got, err, test.want, test.fails)
		}
		must.Hold(t, err == nil || errors.Is(err, ErrFormat), "%s: err = %v", name, err)
	}
}

// FuzzEnrolled turns any bytes into certificates, or an error.
func FuzzEnrolled(f *testing.F) {
	f.Add(variable(signatureList(certificateKey, "one", "two")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if sums, err := certificatesOf(b); err == nil && len(sums) == 0 {
			t.Error("neither a certificate nor an error")
		}
	})
}

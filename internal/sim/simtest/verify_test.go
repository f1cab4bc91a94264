package simtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// TestSignatureOfTheFactory: the configuration of signatures reaches the code that
// verifies them.
func TestSignatureOfTheFactory(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "images:\n", "images:\n  signature: require\n")
		must(t, lab.Client().Publish(t.Context()))
		for name, e := range readLock(t, lab).Schematics {
			if len(e.Signer) != 64 || e.Installer == "" || e.ISO.SHA256 == "" {
				t.Errorf("%s: signer %q of %q, %+v", name, e.Signer, e.Installer, e.ISO)
			}
		}
		lab.Write("key.pem", publicKey(t))
		lab.Replace("recast.yaml", "images:\n", "images:\n  signingKey: key.pem\n")
		err := lab.Client().Publish(t.Context())
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), " is signed, but not by the key ") {
			t.Errorf("another key: %v", err)
		}
	})
}

// TestVerifiedOnce: images in the lock are not opened again.
func TestVerifiedOnce(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.Client().Publish(t.Context()))
		calls, begun, lock := len(lab.Recorder.Calls()), time.Now(), string(lab.Read("recast.lock"))
		must(t, lab.Client().Publish(t.Context()))
		for _, c := range lab.Recorder.Calls()[calls:] {
			if c.Mutation || strings.Contains(c.Path, "/blobs/") || strings.Contains(c.Path, "/image/") {
				t.Errorf("nothing is to be done, but %s %s", c.Method, c.Path)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("nothing is to be done, but it took %s", took)
		}
		if got := string(lab.Read("recast.lock")); got != lock {
			t.Error("the lock was written")
		}
	})
}

func readLock(t *testing.T, lab *Lab) schematics.Lock {
	t.Helper()
	lock, err := schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock"))
	must(t, err)
	return lock
}

func publicKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

package factory

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secureBootKeys writes a factory's keys for Secure Boot: the key of its images with a
// certificate, and that of the policies for TPMs.
func secureBootKeys(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"pcr", "signing"} {
		key := must(rsa.GenerateKey(rand.Reader, 2048))(t)
		write(t, filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
		about := x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "Secure Boot of this test"},
			NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		}
		der := must(x509.CreateCertificate(rand.Reader, &about, &about, &key.PublicKey, key))(t)
		write(t, filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
}

// fingerprint is the SHA-256 of a factory's certificate for Secure Boot.
func (f *factoryServer) fingerprint(t *testing.T) string {
	t.Helper()
	b := must(os.ReadFile(filepath.Join(f.keys, "signing.crt")))(t)
	block, _ := pem.Decode(b)
	return checksum(block.Bytes)
}

// signsForSecureBoot is another cluster's directory with signed images. Then the factory
// gets another key.
func (s *stage) signsForSecureBoot() {
	s.tell("Secure Boot: images signed by the factory's key, of which the lock has the certificate")
	lab := s.dir
	s.toSecureDirectory()
	s.typed(0, "lock")
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	s.typed(0, "publish")
	s.mirrored()
	old := s.server.fingerprint(s.t)
	if got := s.lock().SecureBootKey; got != old {
		s.t.Fatalf("the lock has certificate %s, the factory signs by %s", got, old)
	}

	s.tell("The factory gets another key for Secure Boot: machines that know the first one alone would not start")
	s.server.keys += "-2"
	secureBootKeys(s.t, s.server.keys)
	fresh := s.server.start(s.t)
	s.front.leads(s.t, fresh)
	said, _ := s.typed(2, "lock", "--check")
	s.says(said, old, s.server.fingerprint(s.t))
	s.notes("two replicas again: one still shows the first certificate, the other one builds")
	s.front.splits(s.t, s.factory, fresh)
	s.write("schematics/default.yaml", s.read("schematics/default.yaml")+"  extraKernelArgs: [net.ifnames=0]\n")
	s.typed(0, "lock")
	said, _ = s.typed(4, "publish", "--only", "build")
	s.refused++
	s.says(said, "systemd-boot is not signed by the certificate that is locked for Secure Boot, "+old[:12], "signed by "+s.server.fingerprint(s.t)[:12])
	s.dir = lab
	s.front.leads(s.t, fresh)
	s.factory.stop(s.t)
	s.factory = fresh
}

// toSecureDirectory makes another cluster's directory below the lab's, with Secure Boot and
// one schematic, and changes to it.
func (s *stage) toSecureDirectory() {
	s.t.Helper()
	lab := s.dir
	s.dir = filepath.Join(lab, "secure")
	config, _, _ := strings.Cut(s.readFrom(lab, "recast.yaml"), "roll:")
	config = strings.Replace(config, "images:\n", "images:\n  secureBoot: true\n", 1)
	config = strings.Replace(config, "  storage: schematics/storage.yaml\n", "", 1)
	config = strings.ReplaceAll(strings.ReplaceAll(config, "schematic: storage", "schematic: default"), "./talosconfig", "../talosconfig")
	s.write("recast.yaml", config)
	s.write("schematics/default.yaml", s.readFrom(lab, "schematics/default.yaml"))
}

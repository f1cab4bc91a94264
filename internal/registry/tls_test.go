package registry

import (
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/recast-sh/recast/internal/fault"
)

// A registry's certificate is verified by the system's CAs, and by those of a file.
func TestCAFile(t *testing.T) {
	t.Parallel()
	quiet := log.New(io.Discard, "", 0)
	s := httptest.NewUnstartedServer(ggcr.New(ggcr.Logger(quiet)))
	s.Config.ErrorLog = quiet
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimPrefix(s.URL, "https://") + "/acme/talos:v1.13.9"
	trusts, err := New(Options{CAFile: ca, Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	defer trusts.Close()
	if _, found, err := trusts.Digest(t.Context(), ref); found || err != nil {
		t.Errorf("with its CA: found %t, %v", found, err)
	}
	other, err := New(Options{Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _, err = other.Digest(t.Context(), ref)
	hint := "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	if fault.CodeOf(err) != fault.TLS || strings.Join(fault.Hints(err), "; ") != hint {
		t.Errorf("without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	}
	if _, err := New(Options{CAFile: "client.go"}); err == nil || fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "client.go holds no PEM certificate") {
		t.Errorf("a file without one: %v", err)
	}
}

package factory

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// A factory's certificate is verified by the system's CAs, and by those of a file.
func TestCAFile(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(answer(http.StatusOK, `["v1.13.9"]`))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	trusts, err := New(Options{URL: s.URL, CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	defer trusts.Close()
	if versions, err := trusts.Versions(t.Context()); err != nil || len(versions) != 1 {
		t.Errorf("with its CA: %v, %v", versions, err)
	}
	other, err := New(Options{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Versions(t.Context())
	hint := "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	if fault.CodeOf(err) != fault.TLS || strings.Join(fault.Hints(err), "; ") != hint {
		t.Errorf("without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	}
	if _, err := New(Options{URL: s.URL, CAFile: "client.go"}); err == nil || fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "client.go holds no PEM certificate") {
		t.Errorf("a file without one: %v", err)
	}
}

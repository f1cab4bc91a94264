package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestExpires(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	file := filepath.Join(t.TempDir(), "client.crt")
	if err := os.WriteFile(file, crt, 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(user string) string {
		return strings.ReplaceAll(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {USER}}]
`, "USER", user)
	}
	for name, tc := range map[string]struct {
		kubeconfig string
		want       time.Time
	}{
		"in the file":      {config("client-key-data: a2V5, client-certificate-data: " + base64.StdEncoding.EncodeToString(crt)), end},
		"beside it":        {config("client-key-data: a2V5, client-certificate: " + file), end},
		"gone":             {config("client-key-data: a2V5, client-certificate: " + file + ".gone"), time.Time{}},
		"a token":          {config("token: t"), time.Time{}},
		"no certificate":   {config("client-key-data: a2V5, client-certificate-data: " + base64.StdEncoding.EncodeToString([]byte("x"))), time.Time{}},
		"not a kubeconfig": {"][", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Expires([]byte(tc.kubeconfig)); !got.Equal(tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

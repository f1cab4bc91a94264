package kube

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Expires is when the client certificate of a kubeconfig's current context expires;
// zero if it has none that can be read.
func Expires(kubeconfig []byte) time.Time {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return time.Time{}
	}
	data := cfg.CertData
	if len(data) == 0 && cfg.CertFile != "" {
		if data, err = os.ReadFile(cfg.CertFile); err != nil {
			return time.Time{}
		}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	crt, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return crt.NotAfter
}

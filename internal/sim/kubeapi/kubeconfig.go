package kubeapi

import (
	"encoding/base64"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Kubeconfig is a kubeconfig file with inline certificates, like talosctl's. The server is
// a URL; the rest is PEM.
func Kubeconfig(cluster, server string, ca, cert, key []byte) ([]byte, error) {
	encode := base64.StdEncoding.EncodeToString
	user := "admin@" + cluster
	b, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": user,
		"clusters": []any{map[string]any{"name": cluster, "cluster": map[string]any{
			"server": server, "certificate-authority-data": encode(ca),
		}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": encode(cert), "client-key-data": encode(key),
		}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{
			"cluster": cluster, "user": user, "namespace": "default",
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return b, nil
}

// Package manifests is what Talos applies to a new cluster: each [Manifest] is an object
// that its control planes render from their configuration, as far as the lab needs it.
package manifests

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v4"
)

// Config is the part of a control plane's configuration that the manifests depend on. A
// component without an image is disabled.
type Config struct {
	Server               string // URL of the API servers
	TokenID, TokenSecret string // bootstrap token; empty: its Secret is left out
	ProxyImage           string
	ProxyArguments       []string // "--name=value"
	CoreDNSImage         string
	FlannelImage         string
}

// Of is the default Config for a version of Kubernetes ("v1.35.4").
func Of(version string) Config {
	return Config{
		Server: "https://localhost:7445", ProxyImage: "registry.k8s.io/kube-proxy:" + version,
		CoreDNSImage: CoreDNSImage, FlannelImage: FlannelImage,
	}
}

// The images that are not released with Kubernetes.
const (
	CoreDNSImage = "registry.k8s.io/coredns/coredns:v1.14.7"
	FlannelImage = "ghcr.io/siderolabs/flannel:v0.28.9"
)

// Manifest is the objects that are rendered under one name.
type Manifest struct {
	Name    string
	Objects []map[string]any // with the types that JSON has in Kubernetes: int64 and float64
}

//go:embed *.yaml
var files embed.FS

// Render makes the manifests, ordered by name (ManifestController).
func Render(c Config) ([]Manifest, error) {
	all, err := template.ParseFS(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var list []Manifest
	for _, e := range entries {
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, e.Name(), c); err != nil {
			return nil, fmt.Errorf("render %s: %w", e.Name(), err)
		}
		objects, err := decode(&text)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", e.Name(), err)
		}
		if len(objects) > 0 {
			list = append(list, Manifest{Name: strings.TrimSuffix(e.Name(), ".yaml"), Objects: objects})
		}
	}
	return list, nil
}

func decode(r io.Reader) (objects []map[string]any, err error) {
	for dec := yaml.NewDecoder(r); ; {
		var o map[string]any
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o) > 0 {
			objects = append(objects, wide(o).(map[string]any))
		}
	}
}

// wide converts integers to int64.
func wide(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wide(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wide(v[i])
		}
	case int:
		return int64(v)
	}
	return v
}

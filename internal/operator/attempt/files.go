package attempt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/operator/source"
)

// configFile is the name of recast's configuration.
const configFile = "recast.yaml"

// files puts the files of a cluster together, and returns their revision and their hash.
func (a *Attempt) files(ctx context.Context) (revision, hash string, err error) {
	revision, hash, err = source.Fetch(ctx, a.Source, SourceDir, GitDir, a.Recast.Dir)
	if err != nil {
		return "", "", err
	}
	return revision, hash, a.arrange()
}

// arrange makes of the files of a source those that recast runs on.
func (a *Attempt) arrange() error {
	if err := a.adapt(); err != nil {
		return err
	}
	// A check says, too, what a plan would refuse.
	if err := packable(a.Recast.Dir, a.Files, func(string, []byte) error { return nil }); err != nil {
		return err
	}
	return a.secretFiles(a.Recast.Dir)
}

// adapt changes recast.yaml to what the TalosCluster wants, and to where things are in this container.
func (a *Attempt) adapt() error {
	name := filepath.Join(a.Recast.Dir, configFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	edits := [][2]string{{"talos.config", Talosconfig}, {"roll.etcdSnapshot", BackupDir}}
	if a.TalosVersion != "" {
		edits = append(edits, [2]string{"talos.version", "v" + strings.TrimPrefix(a.TalosVersion, "v")})
	}
	if a.KubernetesVersion != "" {
		edits = append(edits, [2]string{"kubernetes.version", "v" + strings.TrimPrefix(a.KubernetesVersion, "v")})
	}
	text, err = edited(text, edits)
	if err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	return os.WriteFile(name, text, 0o600)
}

// edited sets keys of a YAML file, such as talos.version, to texts.
func edited(text []byte, edits [][2]string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("is no mapping of keys to values")
	}
	for _, e := range edits {
		at := doc.Content[0]
		keys := strings.Split(e[0], ".")
		for i, key := range keys {
			value := valueOf(at, key)
			if value == nil {
				value = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
				at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
			}
			if i < len(keys)-1 && value.Kind != yaml.MappingNode {
				return nil, fmt.Errorf("%s: is no mapping of keys to values", strings.Join(keys[:i+1], "."))
			}
			at = value
		}
		*at = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: e[1], LineComment: at.LineComment}
	}
	return yaml.Marshal(&doc)
}

func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// secretFiles copies spec.secrets.files to where they belong below a directory. A file that the source has,
// too, is replaced.
func (t Task) secretFiles(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for i, f := range t.Files {
		b, err := os.ReadFile(filepath.Join(FilesDir, strconv.Itoa(i), "file"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // missing names it
		}
		if err != nil {
			return err
		}
		if below := filepath.Dir(f.Path); below != "." {
			if err := root.MkdirAll(below, 0o700); err != nil {
				return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
			}
		}
		if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) { // its mode would stay
			return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
		}
		if err := root.WriteFile(f.Path, b, 0o600); err != nil {
			return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
		}
	}
	return nil
}

// missing lists what is not there of Secrets and ConfigMaps, with the remedy.
func (t Task) missing() []string {
	var problems []string
	for _, m := range t.Secrets {
		if m.there() {
			continue
		}
		kind, create := "Secret", "secret generic"
		if m.ConfigMap {
			kind, create = "ConfigMap", "configmap"
		}
		key, from := "key "+m.Key, "--from-file="+m.Key+"=FILE"
		if m.Key == "" {
			key, from = "keys", "--from-literal=NAME=VALUE"
		}
		problems = append(problems, fmt.Sprintf("%s: the %s %s has no %s, or is missing in the namespace %s: kubectl -n %s create %s %s %s",
			m.Field, kind, m.Secret, key, t.Namespace, t.Namespace, create, m.Secret, from))
	}
	return problems
}

// there says whether it is mounted and not empty.
func (m Mounted) there() bool {
	if m.Key != "" {
		b, err := os.ReadFile(m.Path)
		return err == nil && len(bytes.TrimSpace(b)) > 0
	}
	entries, err := os.ReadDir(m.Path)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), "..") // what the kubelet needs
	})
}

package simtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// canary searches everything that recast outputs in a lab for secrets.
type canary struct {
	secrets []secret

	mu    sync.Mutex
	heard bytes.Buffer
	dirs  map[string]bool // working directories
}

// secret is the text of a secret, or a piece of it, and what it is of.
type secret struct {
	text []byte
	of   string
}

func (c *canary) hear(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.WriteString(text)
	c.heard.WriteByte('\n')
}

func (c *canary) visit(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirs[dir] = true
}

// checked searches a command's result, all of which could be printed.
func checked[T any](l *Lab) func(T, error) (T, error) {
	return func(res T, err error) (T, error) {
		text, errJSON := json.Marshal(res)
		if errJSON != nil {
			l.t.Errorf("what a command returns can't be written down: %v", errJSON)
		}
		l.canary.hear(fmt.Sprintf("%s\n%v\n%s", text, err, strings.Join(fault.Hints(err), "\n")))
		return res, err
	}
}

// emit searches an event and passes it to Emit.
func (c *Client) emit(e step.Event) {
	c.lab.canary.hear(fmt.Sprintf("%+v", e))
	if c.Emit != nil {
		c.Emit(e)
	}
}

// newCanary makes a canary of the lab's secrets.
func newCanary(l *sim.Lab, files map[string][]byte) *canary {
	c := &canary{dirs: map[string]bool{}}
	c.addBundle(l.Talos.Secrets)
	for _, file := range []string{"talosconfig", "kubeconfig"} {
		if content := files[file]; content != nil {
			c.addKey("the "+file+"'s key", keyOf(content))
		}
	}
	_, token, _ := strings.Cut(l.Token(), "=")
	_, poor, _ := strings.Cut(sim.PoorToken, "=")
	c.addAll(map[string]string{"the Proxmox token": token, "the poor token": poor})
	return c
}

// addBundle adds the secrets of a Talos cluster.
func (c *canary) addBundle(b *secrets.Bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, key := range map[string][]byte{
		"Talos' CA": b.Certs.OS.Key, "etcd's CA": b.Certs.Etcd.Key, "Kubernetes' CA": b.Certs.K8s.Key,
		"the aggregator's CA": b.Certs.K8sAggregator.Key, "the service accounts' key": b.Certs.K8sServiceAccount.Key,
	} {
		c.addKey(what, key)
	}
	c.addAll(map[string]string{
		"the cluster's secret": b.Cluster.Secret, "the bootstrap token": b.Secrets.BootstrapToken, "the secretbox secret": b.Secrets.SecretboxEncryptionSecret,
		"the AES-CBC secret": b.Secrets.AESCBCEncryptionSecret, "trustd's token": b.TrustdInfo.Token,
	})
}

func (c *canary) addAll(secrets map[string]string) {
	for what, secret := range secrets {
		if secret != "" { // only one of the two encryption secrets of Kubernetes is set
			c.add(what, secret)
			c.add(what, base64.StdEncoding.EncodeToString([]byte(secret)))
		}
	}
}

var keyLine = regexp.MustCompile(`(?m)^\s*(?:client-key-data|key): (\S+)$`)

// keyOf is the private key in a talosconfig or kubeconfig.
func keyOf(file []byte) []byte {
	m := keyLine.FindSubmatch(file)
	if m == nil {
		return nil
	}
	key, err := base64.StdEncoding.DecodeString(string(m[1]))
	if err != nil {
		return nil
	}
	return key
}

func (c *canary) add(what, text string) { c.secrets = append(c.secrets, secret{[]byte(text), what}) }

// addKey makes a key recognizable by each line of its PEM, by its bytes, and by pieces of
// the PEM in base64, as in configurations.
func (c *canary) addKey(what string, key []byte) {
	const piece = 48
	block, _ := pem.Decode(key)
	if block == nil {
		panic(what + " is not in PEM")
	}
	c.add(what, string(block.Bytes))
	for line := range strings.Lines(string(key)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && len(line) >= piece/2 {
			c.add(what, line)
		}
	}
	twice := base64.StdEncoding.EncodeToString(key)
	for at := piece; at+piece <= len(twice); at += piece { // the first piece is the same for any key
		c.add(what, twice[at:at+piece])
	}
}

// in lists the secrets in a text.
func (c *canary) in(text []byte) []string {
	found := map[string]bool{}
	for _, s := range c.secrets {
		if !found[s.of] && bytes.Contains(text, s.text) {
			found[s.of] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// leaks lists the secrets in recast's output and files.
func (l *Lab) leaks() (out []string) {
	look := func(where string, text []byte) {
		for _, what := range l.canary.in(text) {
			out = append(out, where+" has "+what)
		}
	}
	l.canary.mu.Lock()
	defer l.canary.mu.Unlock()
	look("what recast said", l.canary.heard.Bytes())
	for _, vm := range l.World.VMs() {
		look(fmt.Sprintf("VM %d", vm.ID), fmt.Append(nil, vm.Config))
	}
	for _, call := range l.Recorder.Calls() {
		if call.Proto == "proxmox" {
			look(call.Method+" "+call.Path, fmt.Append(nil, call.Path, call.Params))
		}
	}
	for _, n := range l.Nodes {
		if k, err := l.Kube.Node(context.WithoutCancel(l.t.Context()), n.Name); err == nil {
			look("Node "+n.Name, fmt.Append(nil, k.ObjectMeta))
		}
	}
	for dir := range l.canary.dirs {
		if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || given(path) {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			if isSecret(path) {
				if info.Mode().Perm() != 0o600 {
					out = append(out, fmt.Sprintf("%s has mode %s", path, info.Mode()))
				}
				return nil
			}
			content, err := os.ReadFile(path)
			look(path, content)
			return err
		}); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// given are the files that a user provides.
func given(path string) bool {
	return slices.Contains([]string{"talosconfig", "kubeconfig", "env"}, filepath.Base(path))
}

// isSecret are the files in which recast keeps secrets: the journal's, with machine
// configurations, and snapshots of etcd.
func isSecret(path string) bool {
	return strings.HasSuffix(path, ".secret") || strings.HasSuffix(path, ".db")
}

// Package attempt runs in the pod of a Job. It gathers the files of a cluster, runs recast on them, and writes the
// result into the status of the TalosCluster or the ImageRoll. The operator may be down meanwhile.
package attempt

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
	"golang.org/x/mod/semver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/operator/source"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/schematics"
)

// Exit codes of an attempt. Exit codes of recast are passed on.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitDrift   = 2
	ExitConfig  = 3
	ExitRefused = 4
	ExitClaimed = 5 // another run holds the claim
)

type Attempt struct {
	Task
	Recast   Recast
	Reporter Reporter
	// Available returns the versions that the cluster described by the file config can be upgraded to, given the
	// versions that it runs. "": not known.
	Available func(ctx context.Context, config, talos, kubernetes string) (newTalos, newKubernetes string)
	Now       func() metav1.Time

	begun bool // an attempt has started recast on the plan before
}

// Run carries out the task and returns the exit code of the process. It reports problems in the status. An error
// means that the attempt itself, or its report, has failed; Run writes that into the status too, if it can.
func (a *Attempt) Run(ctx context.Context) (int, error) {
	code, err := a.run(ctx)
	if err == nil {
		return code, nil
	}
	known, ok := errors.AsType[exit](err)
	if ok {
		code = known.code
	}
	if reported := a.reportError(ctx, code, err); reported != nil {
		return code, errors.Join(err, reported)
	}
	if ok {
		return code, nil
	}
	return code, err
}

func (a *Attempt) run(ctx context.Context) (int, error) {
	if err := a.prepare(); err != nil {
		return ExitFailed, err
	}
	switch a.Kind {
	case Check:
		return a.check(ctx)
	case Plan:
		return a.plan(ctx)
	case Roll, Kubernetes:
		return a.roll(ctx, PlanDir)
	}
	return ExitConfig, fmt.Errorf("unknown kind of task %q", a.Kind)
}

type exit struct {
	code int
	error
}

func (e exit) Unwrap() error { return e.error }

// reportPatience limits the tries to report an error: the error may be that nothing can be reported.
const reportPatience = time.Minute

func (a *Attempt) reportError(ctx context.Context, code int, err error) error {
	fields := map[string]any{"outcome": v1alpha1.Outcome{Job: a.Job, ExitCode: int32(code), Message: err.Error()}}
	if a.Kind == Check {
		now := a.Now()
		fields = map[string]any{"check": v1alpha1.Check{Job: a.Job, For: a.For, Started: &now, Ended: &now, ExitCode: int32(code), Problems: []string{err.Error()}}}
	}
	short := *a
	short.Reporter.Patient = min(a.Reporter.Patient, reportPatience)
	return short.report(ctx, fields)
}

// prepare sets recast's environment. Images are cached on disk, everything else is in memory.
func (a *Attempt) prepare() error {
	a.Recast.Env = append(a.Recast.Env, "RECAST_CACHE_DIR="+filepath.Join(ScratchDir, "cache"))
	a.Reporter.Hide = redact.New(a.known())
	token, err := os.ReadFile(ProxmoxToken)
	if errors.Is(err, os.ErrNotExist) {
		return nil // missing reports the Secret
	}
	a.Recast.Env = append(a.Recast.Env, "PROXMOX_VE_API_TOKEN="+strings.TrimSpace(string(token)))
	return err
}

// locked runs a command that needs recast.lock. With lock: Update it uses the lock that the operator kept from the
// last check, and makes a new lock if there is none or if it does not fit recast.yaml. As long as the kept lock fits,
// registries may be unreachable.
func (a *Attempt) locked(ctx context.Context, command ...string) (ended, error) {
	if a.Lock != v1alpha1.LockUpdate {
		return a.Recast.run(ctx, nil, command...)
	}
	kept, err := a.keptLock(LockDir)
	if err == nil {
		err = os.WriteFile(filepath.Join(a.Recast.Dir, KeyLock), kept, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return ended{}, err
	}
	if err == nil {
		e, err := a.Recast.run(ctx, nil, command...)
		if err != nil || e.Runbook != lockStale {
			return e, err
		}
	}
	if e, err := a.Recast.run(ctx, nil, "lock"); err != nil || e.code != ExitDone {
		return e, err
	}
	return a.Recast.run(ctx, nil, command...)
}

// known lists the secrets of this pod. What a program printed may have them, and more people read a status or a
// ConfigMap than a Secret.
func (t Task) known() []string {
	known := redact.Environ(os.Environ())
	for _, m := range t.Secrets {
		b, err := os.ReadFile(m.Path)
		if err != nil || m.ConfigMap {
			continue // missing reports it; the keys of a directory are variables, too
		}
		if inside := redact.YAML(b); len(inside) > 0 {
			known = append(known, inside...)
		} else {
			known = append(known, string(b))
		}
	}
	return known
}

// keptLock returns the lock that the last check kept. What someone else has written to its ConfigMap is none
// (os.ErrNotExist): who may write a ConfigMap does not choose what nodes boot.
func (a *Attempt) keptLock(dir string) ([]byte, error) {
	kept, err := os.ReadFile(filepath.Join(dir, KeyLock))
	if err == nil && sum(kept) != a.KeptLock {
		fmt.Fprintln(a.Reporter.Log, "the kept recast.lock is not the one that the last check wrote: recast locks again")
		return nil, os.ErrNotExist
	}
	return kept, err
}

// lockStale is the runbook of a lock that does not fit recast.yaml.
const lockStale = "lock-stale"

type Kind string

const (
	Check      Kind = "check"      // recast drift, for a TalosCluster
	Plan       Kind = "plan"       // recast plan, for an ImageRoll
	Roll       Kind = "roll"       // recast roll --plan, for an ImageRoll
	Kubernetes Kind = "kubernetes" // recast upgrade-k8s, for an ImageRoll
)

// Task is the work of a Job. It is the Job's environment variable RECAST_TASK, so that everyone who reads the Job
// sees the whole task.
type Task struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`        // name of the TalosCluster
	Roll      string `json:"roll,omitempty"` // name of the ImageRoll
	Job       string `json:"job"`            // name of the Job
	// Results is the ConfigMap for what recast printed. The operator has made the ConfigMap.
	Results string `json:"results"`

	Source            v1alpha1.Source       `json:"source,omitzero"`
	TalosVersion      string                `json:"talosVersion,omitempty"`
	KubernetesVersion string                `json:"kubernetesVersion,omitempty"`
	Lock              v1alpha1.LockPolicy   `json:"lock,omitempty"`
	Secrets           []Mounted             `json:"secrets,omitempty"`
	Files             []v1alpha1.SecretFile `json:"files,omitempty"` // copied beside recast.yaml

	For string `json:"for,omitempty"` // v1alpha1.Check.For
	// Finished are the nodes that earlier attempts have finished.
	Finished []string `json:"finished,omitempty"`
	// Continue: an earlier attempt has begun the plan.
	Continue bool `json:"continue,omitempty"`
	// PlanHash is the hash of the approved plan, and Contents that of its text and files: see contents.
	PlanHash string `json:"planHash,omitempty"`
	Contents string `json:"contents,omitempty"`
	KeptLock string `json:"keptLock,omitempty"` // v1alpha1.Check.KeptLock
	// KubernetesRoll: the plan is a plan of recast upgrade-k8s.
	KubernetesRoll bool     `json:"kubernetesRoll,omitempty"`
	Only           []string `json:"only,omitempty"`
	AcceptOutage   bool     `json:"acceptOutage,omitempty"`
}

// Mounted is a key of a Secret or of a ConfigMap, which recast needs.
type Mounted struct {
	Path      string `json:"path"`                // in the container
	Secret    string `json:"secret"`              // its name
	ConfigMap bool   `json:"configMap,omitempty"` // a ConfigMap, not a Secret
	Key       string `json:"key,omitempty"`       // "": any, and path is a directory
	Field     string `json:"field"`               // of the TalosCluster: "spec.secrets.proxmoxToken"
}

// ReadTask reads a task from the text of its environment variable.
func ReadTask(text string) (Task, error) {
	var t Task
	if text == "" {
		return t, fmt.Errorf("%s is not set: this command is for the Jobs that the operator makes", TaskVariable)
	}
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return t, fmt.Errorf("%s: %w", TaskVariable, err)
	}
	return t, nil
}

// String returns the text that ReadTask reads.
func (t Task) String() string {
	b, err := json.Marshal(t)
	if err != nil {
		return "" // impossible for plain data
	}
	return string(b)
}

// TaskVariable is the environment variable with the task.
const TaskVariable = "RECAST_TASK"

// Directories in the container.
const (
	WorkDir    = "/work"              // recast.yaml and the files beside it; in memory, since journals have secrets
	ScratchDir = "/tmp"               // images while they are unpacked and uploaded
	BackupDir  = "/backups"           // etcd snapshots
	SourceDir  = "/run/recast/source" // the ConfigMap of a source
	PlanDir    = "/run/recast/plan"   // the ConfigMap of a plan
	LockDir    = "/run/recast/lock"   // the ConfigMap with the lock that the operator keeps
	TrustDir   = "/run/recast/trust"  // ca.crt
	SecretsDir = "/run/recast/secrets"

	ProxmoxToken = SecretsDir + "/proxmox/token"
	Talosconfig  = SecretsDir + "/talos/talosconfig"
	Kubeconfig   = SecretsDir + "/kubernetes/kubeconfig"
	AgeKey       = SecretsDir + "/age/age.agekey"
	GitDir       = SecretsDir + "/git"
	RegistryDir  = SecretsDir + "/registry" // config.json
	EnvDir       = SecretsDir + "/env"      // spec.secrets.envFrom, to check whether it exists
	FilesDir     = SecretsDir + "/files"    // 0, 1, …: spec.secrets.files
)

// Keys of the ConfigMaps with results.
const (
	KeyDrift  = "drift.json"
	KeyDoctor = "doctor.json"
	KeyLock   = "recast.lock"
	KeyPlan   = "plan.json"
	KeyFiles  = "files.tar.gz" // the files that a plan was made from
	KeyReport = "report.json"
	KeyHTML   = "report.html"
)

const configFile = "recast.yaml"

func (a *Attempt) files(ctx context.Context) (revision, hash string, err error) {
	revision, hash, err = source.Fetch(ctx, a.Source, SourceDir, GitDir, a.Recast.Dir)
	if err != nil {
		return "", "", err
	}
	return revision, hash, a.arrange()
}

// arrange turns the files of a source into the files that recast runs on.
func (a *Attempt) arrange() error {
	if err := a.adapt(); err != nil {
		return err
	}
	// A check also reports files that a plan would refuse.
	if err := packable(a.Recast.Dir, a.Files, func(string, []byte) error { return nil }); err != nil {
		return err
	}
	return a.secretFiles(a.Recast.Dir)
}

// adapt edits recast.yaml: versions that the TalosCluster wants, and paths in this container.
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

// edited sets keys of a YAML file, such as talos.version, to the given texts.
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
				return nil, fmt.Errorf("%s: is not a mapping of keys to values", strings.Join(keys[:i+1], "."))
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

// secretFiles copies spec.secrets.files to their paths below a directory. A file of the source at such a path is
// replaced.
func (t Task) secretFiles(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for i, f := range t.Files {
		b, err := os.ReadFile(filepath.Join(FilesDir, strconv.Itoa(i), "file"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // missing reports the Secret
		}
		if err != nil {
			return err
		}
		if below := filepath.Dir(f.Path); below != "." {
			if err := root.MkdirAll(below, 0o700); err != nil {
				return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
			}
		}
		if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) { // writing to the old file would keep its mode
			return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
		}
		if err := root.WriteFile(f.Path, b, 0o600); err != nil {
			return fmt.Errorf("spec.secrets.files[%d].path: %w", i, err)
		}
	}
	return nil
}

// missing lists the Secrets and ConfigMaps that are missing, each with the remedy.
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

func (m Mounted) there() bool {
	if m.Key != "" {
		b, err := os.ReadFile(m.Path)
		return err == nil && len(bytes.TrimSpace(b)) > 0
	}
	entries, err := os.ReadDir(m.Path)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), "..") // for the kubelet itself
	})
}

// packable calls do for each file to keep with a plan: all files but Secrets and those that recast made. More people
// may read a ConfigMap than a Secret, so a secret in such a file is an error.
func packable(dir string, secrets []v1alpha1.SecretFile, do func(name string, b []byte) error) error {
	secret := map[string]bool{}
	for _, f := range secrets {
		secret[filepath.Clean(f.Path)] = true
	}
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name == ".recast":
			return fs.SkipDir
		case !e.Type().IsRegular() || secret[filepath.FromSlash(name)]:
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if secret := redact.Holds(name, b); secret != "" {
			return exit{ExitConfig, fmt.Errorf("%s has %s, and the files are kept in a ConfigMap: encrypt it with sops, or put the file into a Secret and name that in spec.secrets.files", name, secret)}
		}
		return do(name, b)
	})
}

func pack(dir string, secrets []v1alpha1.SecretFile) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	err := packable(dir, secrets, func(name string, b []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err := archive.Write(b)
		return err
	})
	if err := errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// contents is the hash of a plan and of the files that it was made from.
func contents(plan, packed []byte) string { return sum([]byte(sum(plan) + "\n" + sum(packed) + "\n")) }

func sum(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func unpack(dir string, packed io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zip, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	archive := tar.NewReader(zip)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if dir := filepath.Dir(h.Name); dir != "." {
			if err := root.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		b, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := root.WriteFile(h.Name, b, 0o700); err != nil { // the mode that package source gives: any file may be a program
			return err
		}
	}
}

// maxLines is the most lines of a list in a status; the ConfigMap has all lines.
const maxLines = 20

// drift is the output of recast drift -o json: docs/schemas/drift.schema.json.
type drift struct {
	Unread int `json:"unread"`
	Stale  int `json:"stale"`
	Nodes  []struct {
		Node    string   `json:"node"`
		Stale   bool     `json:"stale"`
		Unread  []string `json:"unread"`
		Talos   string   `json:"talos"`
		Reasons []struct {
			Code string `json:"code"`
			Text string `json:"text"`
			Old  string `json:"old"`
		} `json:"reasons"`
	} `json:"nodes"`
}

// kubernetesReason is the code of a reason for drift that only upgrade-k8s removes.
const kubernetesReason = "kubernetes-version"

func (a *Attempt) check(ctx context.Context) (int, error) {
	c := v1alpha1.Check{Job: a.Job, For: a.For, Started: new(a.Now()), KeptLock: a.KeptLock}
	fields := map[string]any{}
	results, err := a.compare(ctx, &c, fields)
	if err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.conclude(ctx, c, fields, results)
}

// conclude keeps the results, and reports the check last: the operator may make an ImageRoll at once, which takes the
// lock from the results.
func (a *Attempt) conclude(ctx context.Context, c v1alpha1.Check, fields map[string]any, results map[string][]byte) error {
	if err := a.keep(ctx, results); err != nil {
		c.Problems = append(c.Problems, a.notKept(err))
	}
	c.Ended = new(a.Now())
	fields["check"] = c
	return a.report(ctx, fields)
}

// compare fills in the check and further fields of the status. After an error nothing is known about the cluster;
// another attempt may succeed.
func (a *Attempt) compare(ctx context.Context, c *v1alpha1.Check, fields map[string]any) (map[string][]byte, error) {
	var err error
	c.Revision, c.Files, err = a.files(ctx)
	if err != nil {
		c.ExitCode, c.Problems = ExitConfig, []string{err.Error()}
		return nil, nil
	}
	if c.Problems = a.missing(); len(c.Problems) > 0 {
		c.ExitCode = ExitConfig
		return nil, nil
	}
	results := map[string][]byte{}
	compared, err := a.locked(ctx, "drift", "-o", "json")
	if err != nil {
		return nil, err
	}
	a.describeLock(c, fields, results)
	c.ExitCode = int32(compared.code)
	var d drift
	if len(compared.stdout) > 0 {
		if err := json.Unmarshal(compared.stdout, &d); err != nil {
			return nil, fmt.Errorf("read what recast drift printed: %w", err)
		}
		results[KeyDrift] = compared.stdout
		a.describeDrift(ctx, d, c, fields)
	}
	if compared.code == ExitDone || compared.code == ExitDrift {
		return results, nil
	}
	if compared.Error != "" {
		c.Problems = append(c.Problems, compared.String())
	}
	return results, a.Recast.examine(ctx, c, results)
}

func (a *Attempt) describeLock(c *v1alpha1.Check, fields map[string]any, results map[string][]byte) {
	lock, err := schematics.ReadLock(filepath.Join(a.Recast.Dir, KeyLock))
	if err != nil {
		return // recast drift reports why
	}
	c.Lock = lock.Key()
	builds := []v1alpha1.Build{}
	for _, name := range lock.Names() {
		builds = append(builds, v1alpha1.Build{Schematic: name, ID: lock.Schematics[name].BuildID})
	}
	fields["builds"] = builds
	fields["talos"] = v1alpha1.Versions{Wanted: lock.Talos}
	if a.Lock == v1alpha1.LockUpdate {
		if text, err := os.ReadFile(filepath.Join(a.Recast.Dir, KeyLock)); err == nil {
			results[KeyLock], c.KeptLock = text, sum(text)
		}
	}
}

func (a *Attempt) describeDrift(ctx context.Context, d drift, c *v1alpha1.Check, fields map[string]any) {
	nodes := v1alpha1.Nodes{Total: int32(len(d.Nodes)), Stale: int32(d.Stale), Unread: int32(d.Unread)}
	talos, _ := fields["talos"].(v1alpha1.Versions)
	kubernetes := v1alpha1.Versions{Wanted: a.Recast.wantedKubernetes()}
	c.OnlyKubernetes = d.Stale > 0
	for _, n := range d.Nodes {
		if !n.Stale && len(n.Unread) == 0 {
			nodes.InSync++
		}
		talos.Current = older(talos.Current, n.Talos)
		for _, r := range n.Reasons {
			c.Reasons = append(c.Reasons, n.Node+": "+r.Text)
			if r.Code == kubernetesReason {
				kubernetes.Current = older(kubernetes.Current, r.Old)
			} else {
				c.OnlyKubernetes = false
			}
		}
		for _, text := range n.Unread {
			c.Problems = append(c.Problems, n.Node+": "+text)
		}
	}
	if kubernetes.Current == "" && nodes.Unread == 0 {
		kubernetes.Current = kubernetes.Wanted
	}
	c.Reasons, c.Problems = firstLines(c.Reasons), firstLines(c.Problems)
	newest, newestKubernetes := a.Available(ctx, filepath.Join(a.Recast.Dir, configFile), talos.Current, kubernetes.Current)
	talos.Available, kubernetes.Available = ifNewer(newest, talos.Wanted), ifNewer(newestKubernetes, kubernetes.Wanted)
	fields["nodes"], fields["talos"], fields["kubernetes"] = nodes, talos, kubernetes
}

// wantedKubernetes returns the version of Kubernetes in recast.yaml; "" if it names none.
func (r Recast) wantedKubernetes() string {
	var c struct {
		Kubernetes struct {
			Version string `yaml:"version"`
		} `yaml:"kubernetes"`
	}
	if text, err := os.ReadFile(filepath.Join(r.Dir, configFile)); err != nil || yaml.Unmarshal(text, &c) != nil {
		return ""
	}
	return c.Kubernetes.Version
}

func (r Recast) examine(ctx context.Context, c *v1alpha1.Check, results map[string][]byte) error {
	found, err := r.run(ctx, nil, "doctor", "-o", "json")
	if err != nil {
		return err
	}
	results[KeyDoctor] = found.stdout
	c.Problems = firstLines(slices.Concat(c.Problems, doctorLines(found.stdout)))
	return nil
}

// doctorLines returns the problems found by recast doctor -o json, with their remedies.
func doctorLines(text []byte) []string {
	var d struct {
		Checks []struct {
			What   string   `json:"what"`
			State  string   `json:"state"`
			Seen   string   `json:"seen"`
			Remedy []string `json:"remedy"`
		} `json:"checks"`
	}
	if json.Unmarshal(text, &d) != nil {
		return nil // recast printed an error instead
	}
	var lines []string
	for _, check := range d.Checks {
		if check.State != "problem" {
			continue
		}
		line := "doctor: " + check.What + ": " + check.Seen
		if len(check.Remedy) > 0 {
			line += ": " + strings.Join(check.Remedy, "; ")
		}
		lines = append(lines, line)
	}
	return lines
}

// firstLines returns at most maxLines lines; the last line says how many are left out.
func firstLines(lines []string) []string {
	if len(lines) <= maxLines {
		return lines
	}
	return append(slices.Clone(lines[:maxLines-1]), fmt.Sprintf("and %d more", len(lines)-maxLines+1))
}

// older returns the older of two versions; "" is no version.
func older(a, b string) string {
	if a == "" || b != "" && semver.Compare(b, a) < 0 {
		return b
	}
	return a
}

// ifNewer returns version if it is newer than the version than; otherwise "".
func ifNewer(version, than string) string {
	if version == "" || semver.Compare(version, than) <= 0 {
		return ""
	}
	return version
}

// plan makes the plan of an ImageRoll, and keeps it with the files that it was made from.
func (a *Attempt) plan(ctx context.Context) (int, error) {
	revision, _, err := a.files(ctx)
	if err != nil {
		return a.stop(ctx, ExitConfig, err.Error())
	}
	if problems := a.missing(); len(problems) > 0 {
		return a.stop(ctx, ExitConfig, strings.Join(problems, "; "))
	}
	made, err := a.locked(ctx, a.planCommand()...)
	if err != nil {
		return ExitFailed, err
	}
	if made.code != ExitDone {
		return a.stop(ctx, made.code, made.String())
	}
	p := v1alpha1.Plan{ConfigMap: a.Results, Revision: revision}
	if err := a.describePlan(&p, made.stdout); err != nil {
		return ExitFailed, err
	}
	packed, err := pack(a.Recast.Dir, a.Files)
	if err != nil {
		return ExitFailed, err
	}
	if len(packed) > maxFiles {
		return a.stop(ctx, ExitConfig, fmt.Sprintf("the files of the cluster take %d KiB compressed, %d fit beside a plan: name the directory with recast.yaml in spec.source", len(packed)>>10, maxFiles>>10))
	}
	p.Contents = contents(made.stdout, packed)
	if err := a.keep(ctx, map[string][]byte{KeyPlan: made.stdout, KeyFiles: packed}); err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.report(ctx, map[string]any{"plan": p})
}

func (t Task) planCommand() []string {
	if t.KubernetesRoll {
		return kubernetesDryRun()
	}
	command := []string{"plan", "-o", "json"}
	if len(t.Only) > 0 {
		command = append(command, "--only", strings.Join(t.Only, ","))
	}
	if t.AcceptOutage {
		command = append(command, "--accept-outage")
	}
	return command
}

func (a *Attempt) describePlan(p *v1alpha1.Plan, text []byte) error {
	if a.KubernetesRoll {
		hash, err := kubernetesHash(text)
		if err != nil {
			return err
		}
		p.Hash, p.Nodes = hash, 1
		p.Lines = []string{"upgrade Kubernetes to " + a.Recast.wantedKubernetes()}
		return nil
	}
	id, nodes, err := unfinished(text)
	if err != nil {
		return fmt.Errorf("read what recast plan printed: %w", err)
	}
	if len(nodes) > 0 {
		p.Hash, p.Unfinished, p.Nodes, p.LastNode = id, true, int32(len(nodes)), nodes[len(nodes)-1]
		for _, node := range nodes {
			p.Lines = append(p.Lines, node+": finish what an earlier run left")
		}
		p.Lines = firstLines(p.Lines)
		return nil
	}
	plan, err := planning.Read(text)
	if err != nil {
		return fmt.Errorf("read what recast plan printed: %w", err)
	}
	p.Hash, p.Refused = plan.ID, firstLines(plan.Refused())
	for _, n := range plan.Work() {
		p.Lines, p.LastNode = append(p.Lines, planLine(n)), n.Node
		p.Nodes++
	}
	for _, text := range plan.Surge.Lines() {
		p.Lines = append(p.Lines, "surge: "+text)
	}
	p.Lines = firstLines(p.Lines)
	return nil
}

// unfinished returns the nodes that an earlier run left unfinished, and the plan's ID. recast carries out a plan with
// unfinished nodes, but does not read such a plan from a file.
func unfinished(plan []byte) (id string, nodes []string, err error) {
	var p struct {
		ID    string `json:"id"`
		Nodes []struct {
			Node   string `json:"node"`
			Resume bool   `json:"resume"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(plan, &p); err != nil {
		return "", nil, err
	}
	for _, n := range p.Nodes {
		if n.Resume {
			nodes = append(nodes, n.Node)
		}
	}
	return p.ID, nodes, nil
}

// planLine describes what happens to a node: "wk1: recreate, about 2m40s away: extension iscsi-tools …; loses …".
func planLine(n planning.NodePlan) string {
	words := n.Node + ": " + string(n.Strategy)
	if n.OutageSeconds > 0 {
		words += ", about " + (time.Duration(n.OutageSeconds) * time.Second).String() + " away"
	}
	if len(n.Drift.Reasons) > 0 {
		words += ": " + n.Drift.Reasons[0].Text
	}
	if len(n.WillLose) > 0 {
		words += "; loses " + strings.Join(n.WillLose, ", ")
	}
	return words
}

// Recast is the program that does the work.
type Recast struct {
	Binary string
	Dir    string   // directory of recast.yaml
	Env    []string // in addition to this process's environment
	Log    io.Writer
	// Signals are passed on to recast: the first signal makes it finish the nodes in progress, the second stops it at
	// once.
	Signals <-chan os.Signal
}

type ended struct {
	code   int
	stdout []byte
	trouble
}

// trouble is the error at the end of recast's stderr, by the words that begin its lines.
type trouble struct {
	Error   string // with its further lines
	Hints   []string
	Runbook string // its code
}

// String returns the error with its remedy, on one line.
func (t trouble) String() string { return strings.Join(append([]string{t.Error}, t.Hints...), "; ") }

// run runs recast to its end. An error means that recast could not be run at all.
func (r Recast) run(ctx context.Context, onEvent func(event), args ...string) (ended, error) {
	cmd := exec.CommandContext(ctx, r.Binary, args...)
	cmd.Dir, cmd.Env = r.Dir, append(os.Environ(), r.Env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	lines := &lineReader{log: r.Log, onEvent: onEvent}
	cmd.Stderr = lines
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return ended{}, fmt.Errorf("start recast: %w", err)
	}
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-r.Signals:
				_ = cmd.Process.Signal(s) // recast may have ended
			case <-done:
				return
			}
		}
	})
	err := cmd.Wait()
	close(done)
	passing.Wait()
	e := ended{stdout: stdout.Bytes(), trouble: lines.trouble()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if e.code = exit.ExitCode(); e.code < 0 {
			return e, fmt.Errorf("recast was killed: %w", err)
		}
		return e, nil
	}
	return e, err
}

// event is a line of --progress json, written by internal/live.
type event struct {
	Msg    string `json:"msg"`
	Step   string `json:"step"`
	Node   string `json:"node"`
	Status string `json:"status"`
	Title  string `json:"title"`
	Text   string `json:"text"`
}

// lineReader passes stderr on, and reads it line by line: events and other lines.
type lineReader struct {
	log     io.Writer
	onEvent func(event)
	partial []byte
	said    []string // the last lines that are no events
}

func (l *lineReader) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.line(string(line))
		l.partial = rest
	}
}

func (l *lineReader) line(line string) {
	fmt.Fprintln(l.log, line)
	var e event
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
		if e.Msg != "said" {
			if l.onEvent != nil && e.Msg == "step" {
				l.onEvent(e)
			}
			return
		}
		line = e.Text // text printed beside the steps; without --progress json that is every line
	}
	const kept = 100
	l.said = append(l.said, line)
	l.said = l.said[max(0, len(l.said)-kept):]
}

// trouble returns the last error: "error: …", then lines that begin with "safe: ", "hint: " and "runbook: ".
func (l *lineReader) trouble() trouble {
	if len(l.partial) > 0 {
		l.line(string(l.partial))
		l.partial = nil
	}
	var t trouble
	inError := false
	for _, line := range l.said {
		switch {
		case strings.HasPrefix(line, "error: "):
			t, inError = trouble{Error: strings.TrimPrefix(line, "error: ")}, true
		case strings.HasPrefix(line, "hint: "):
			t.Hints, inError = append(t.Hints, strings.TrimPrefix(line, "hint: ")), false
		case strings.HasPrefix(line, "runbook: recast runbook "):
			t.Runbook, _, _ = strings.Cut(strings.TrimPrefix(line, "runbook: recast runbook "), " ")
			inError = false
		case strings.HasPrefix(line, "safe: "):
			inError = false
		case inError && strings.TrimSpace(line) != "":
			t.Error += "; " + strings.TrimSpace(line)
		}
	}
	return t
}

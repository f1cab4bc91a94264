package attempt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/mod/semver"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/schematics"
)

// maxLines is how many lines of a list a status has; the ConfigMap has all of them.
const maxLines = 20

// drift is what recast drift -o json prints, as docs/schemas/drift.schema.json has it.
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

// kubernetesReason is the code of a reason that only upgrade-k8s removes.
const kubernetesReason = "kubernetes-version"

// check compares the cluster with its files.
func (a *Attempt) check(ctx context.Context) (int, error) {
	c := v1alpha1.Check{Job: a.Job, For: a.For, Started: new(a.Now())}
	fields := map[string]any{}
	results, err := a.compare(ctx, &c, fields)
	if err != nil {
		return ExitFailed, err
	}
	return ExitDone, a.conclude(ctx, c, fields, results)
}

// conclude keeps the results, and then reports the check: the operator may make an ImageRoll at once,
// which takes the lock from the results.
func (a *Attempt) conclude(ctx context.Context, c v1alpha1.Check, fields map[string]any, results map[string][]byte) error {
	if err := a.keep(ctx, results); err != nil {
		c.Problems = append(c.Problems, a.notKept(err))
	}
	c.Ended = new(a.Now())
	fields["check"] = c
	return a.report(ctx, fields)
}

// compare fills in the check and further fields of the status. An error means that nothing can be
// said, which another attempt may change.
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
	if compared.code == 0 || compared.code == 2 {
		return results, nil
	}
	if compared.Error != "" {
		c.Problems = append(c.Problems, compared.String())
	}
	return results, a.Recast.examine(ctx, c, results)
}

// describeLock reads the builds of the lock.
func (a *Attempt) describeLock(c *v1alpha1.Check, fields map[string]any, results map[string][]byte) {
	lock, err := schematics.ReadLock(filepath.Join(a.Recast.Dir, KeyLock))
	if err != nil {
		return // recast drift says why
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
			results[KeyLock] = text
		}
	}
}

// describeDrift counts nodes and finds out versions.
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

// wantedKubernetes is the version of Kubernetes in recast.yaml, "" if it names none.
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

// examine asks recast doctor what is missing, for a cluster that could not be read.
func (r Recast) examine(ctx context.Context, c *v1alpha1.Check, results map[string][]byte) error {
	found, err := r.run(ctx, nil, "doctor", "-o", "json")
	if err != nil {
		return err
	}
	results[KeyDoctor] = found.stdout
	c.Problems = firstLines(slices.Concat(c.Problems, doctorLines(found.stdout)))
	return nil
}

// doctorLines are the problems that recast doctor -o json has found, with their remedies.
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
		return nil // it printed an error instead
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

// firstLines cuts a list, and says so in its last line.
func firstLines(lines []string) []string {
	if len(lines) <= maxLines {
		return lines
	}
	return append(slices.Clone(lines[:maxLines-1]), fmt.Sprintf("and %d more", len(lines)-maxLines+1))
}

// older returns the older one of two versions; "" is no version.
func older(a, b string) string {
	if a == "" || b != "" && semver.Compare(b, a) < 0 {
		return b
	}
	return a
}

// ifNewer returns a version if it is newer than another one.
func ifNewer(version, than string) string {
	if version == "" || semver.Compare(version, than) <= 0 {
		return ""
	}
	return version
}

package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// checker checks the meaning of the values, after all have been read.
type checker struct {
	*report
	c        *Config
	expr     func(string) error // Options.Expr
	template func(string) error // Options.Template
}

func (k checker) all() {
	k.pattern("cluster", k.c.Cluster, `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`,
		"name of a cluster: letters, digits, '-', '_' and '.'")
	k.talos()
	k.version("kubernetes.version", k.c.Kubernetes.Version, "version of Kubernetes: write it like v1.35.4")
	k.images()
	k.schematics()
	k.proxmox()
	k.nodes()
	k.vms()
	k.roll()
	k.webhooks()
}

// pattern reports a given value that the pattern does not match completely.
func (r *report) pattern(path, value, pattern, what string) {
	if r.given(path) && !matches(value, pattern) {
		r.add(path, "%s is not a %s", quote(value), what)
	}
}

// matches says whether pattern describes the whole value.
func matches(value, pattern string) bool {
	return regexp.MustCompile(`^(` + pattern + `)$`).MatchString(value)
}

const semver = `(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?`

func (k checker) talos() {
	k.version("talos.version", k.c.Talos.Version, "version of Talos: write it like v1.13.9")
	if matches(k.c.Talos.Version, `v(0|1\.[0-9])\..*`) {
		k.add("talos.version", "%s is too old: before v1.10 an installer does not include platform and kernel arguments, "+
			"so a node would not run what recast.lock says; use v1.10.0 or later", bare(k.c.Talos.Version))
	}
	k.notEmpty("talos.config", k.c.Talos.Config)
	k.machineConfigs()
}

func (r *report) version(path, v, what string) {
	if matches(v, semver) {
		r.add(path, "%q lacks its \"v\", did you mean \"v%s\"?", v, v)
	}
	r.pattern(path, v, "v"+semver, what)
}

func (r *report) notEmpty(path, value string) {
	if r.given(path) && value == "" {
		r.add(path, "is empty: give it a value or remove it")
	}
}

// url reports a value that is not the URL of a server. It never shows the
// value, which may hold a password.
func (r *report) url(path, value string, schemes ...string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || !slices.Contains(schemes, u.Scheme) || u.Hostname() == "":
		r.add(path, "is not the URL of a server: write it like %s://host", schemes[0])
	case u.User != nil:
		r.add(path, "holds a user or password: secrets never live in this file")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		r.add(path, "has a query or fragment: give the server alone")
	}
}

func (k checker) proxmox() {
	px := k.c.Proxmox
	const list = "proxmox.endpoints"
	if k.given(list) && len(px.Endpoints) == 0 {
		k.add(list, "is empty: give at least one, like https://pve1.example:8006")
	}
	for i, e := range px.Endpoints {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.url(path, e, "https")
		if u, err := url.Parse(e); err == nil && strings.Trim(u.Path, "/") != "" {
			k.add(path, "has a path: give the server alone, like https://pve1.example:8006")
		}
		same := func(other string) bool { return strings.TrimRight(other, "/") == strings.TrimRight(e, "/") }
		if first := slices.IndexFunc(px.Endpoints, same); first < i {
			k.add(path, "is listed already (line %d)", k.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
	k.pattern("proxmox.fingerprint", px.Fingerprint, `[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){31}`,
		"SHA-256 fingerprint: 32 pairs of hex digits with colons between, as pvenode cert info shows it")
	k.notEmpty("proxmox.caFile", px.CAFile)
	if k.given("proxmox.fingerprint") && k.given("proxmox.caFile") {
		k.add("proxmox.caFile", "fingerprint is given too (line %d): keep one of them", k.line("proxmox.fingerprint"))
	}
	if k.given("proxmox.vmids") && px.VMIDs.Len() < 2 {
		k.add("proxmox.vmids", "%s is too small: recast needs one VMID for its claim and one for parked disks", px.VMIDs)
	}
}

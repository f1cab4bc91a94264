package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// checker checks what the values mean, after each has been read.
type checker struct {
	*report
	c *Config
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
	k.roll()
}

// pattern reports a given value that does not match as a whole.
func (k checker) pattern(path, value, pattern, what string) {
	if k.given(path) && !matches(value, pattern) {
		k.add(path, "%s is not a %s", quote(value), what)
	}
}

// matches says whether pattern describes the whole value.
func matches(value, pattern string) bool {
	return regexp.MustCompile(`^(` + pattern + `)$`).MatchString(value)
}

// An image repository is a path on a registry. Docker, and the nodes with it, take
// a first part without dot and port for a path on docker.io: see reference.ParseNormalizedNamed.
const (
	repositoryPath = `(/[a-z0-9]+([-._]+[a-z0-9]+)*)+`
	hostLabel      = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	registryHost   = `(localhost|` + hostLabel + `(\.` + hostLabel + `)+|` + hostLabel + `(\.` + hostLabel + `)*:[0-9]+)`
)

const semver = `(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?`

func (k checker) talos() {
	k.version("talos.version", k.c.Talos.Version, "version of Talos: write it like v1.13.9")
	k.notEmpty("talos.config", k.c.Talos.Config)
	k.notEmpty("talos.machineConfigs", k.c.Talos.MachineConfigs)
}

func (k checker) version(path, v, what string) {
	if matches(v, semver) {
		k.add(path, "%q lacks its \"v\", did you mean \"v%s\"?", v, v)
	}
	k.pattern(path, v, "v"+semver, what)
}

func (k checker) notEmpty(path, value string) {
	if k.given(path) && value == "" {
		k.add(path, "is empty: give it a value or remove it")
	}
}

func (k checker) images() {
	im := k.c.Images
	if k.given("images.factory") {
		k.url("images.factory", im.Factory, "https", "http")
	}
	// Not shown either: people put credentials in front of a registry's name.
	if !matches(im.Extensions, `[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?`+repositoryPath) {
		k.add("images.extensions", "is not a registry and organization: write it like ghcr.io/siderolabs, without scheme and tag")
	}
	if k.given("images.mirror") && !matches(im.Mirror, registryHost+repositoryPath) {
		k.add("images.mirror", "is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest")
	}
	const list = "images.iso.storage"
	if k.given(list) && len(im.ISO.Storage) == 0 {
		k.add(list, "is empty: name a Proxmox storage with content type iso")
	}
	for i, s := range im.ISO.Storage {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.pattern(path, s, `[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?`, "name of a Proxmox storage")
		if first := slices.Index(im.ISO.Storage, s); first < i {
			k.add(path, "%s is listed already (line %d)", quote(s), k.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
}

// url reports a value that is not the URL of a server. It never shows the
// value: it may hold a password.
func (k checker) url(path, value string, schemes ...string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || !slices.Contains(schemes, u.Scheme) || u.Hostname() == "":
		k.add(path, "is not the URL of a server: write it like %s://host", schemes[0])
	case u.User != nil:
		k.add(path, "holds a user or password: secrets never live in this file")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		k.add(path, "has a query or fragment: give the server alone")
	}
}

func (k checker) schematics() {
	if k.given("schematics") && len(k.c.Schematics) == 0 {
		k.add("schematics", "is empty: name at least one schematic")
	}
	for name, s := range k.c.Schematics {
		path := spot{path: "schematics"}.entry(name).path
		k.pattern(path, name, `[A-Za-z0-9]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?`, "name of a schematic: letters, digits, '-' and '_'")
		if file := path + ".file"; s.File == "" && !k.bad[file] {
			k.add(path, "is empty: name its file")
		}
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

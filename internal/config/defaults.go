package config

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"
)

// defaults is the configuration of an empty file.
func defaults() Config {
	return Config{
		Images: Images{
			Builder:    "auto",
			Factory:    "https://factory.talos.dev",
			Extensions: "ghcr.io/siderolabs",
			Platform:   "nocloud",
			Arch:       "amd64",
			Signature:  "warn",
			Imager:     Imager{Image: "ghcr.io/siderolabs/imager"},
			ISO:        ISO{Delivery: "auto"},
			Boot:       BootISO,
		},
		Roll: Roll{
			Strategy:       "auto",
			Order:          "control-planes-first",
			MaxUnavailable: MaxUnavailable{Workers: Share{Count: 1}, PerHost: 1},
			Canary:         Canary{On: true},
			Reboot:         "canary",
			Drain:          Drain{Timeout: Duration(10 * time.Minute), OnTimeout: "stop"},
			Settle:         Duration(30 * time.Second),
			Poll:           Duration(2 * time.Second),
			Timeouts: Timeouts{
				Stop: Duration(5 * time.Minute),
				Boot: Duration(10 * time.Minute),
				Join: Duration(10 * time.Minute),
				Try:  Duration(2 * time.Minute),

				Storage: Duration(time.Hour),
			},
			Storage:     Storage{"on", "on", "on", "on"},
			BootFailure: "rollback",
			KeepDisks:   1,
		},
		History: History{Share: ShareAuto},
	}
}

// complete fills in defaults that depend on the rest of the file, its directory or the environment.
func (c *Config) complete(o Options) {
	c.Dir = o.Dir
	for i, n := range c.Nodes {
		if n.Strategy == "" {
			c.Nodes[i].Strategy = c.Roll.Strategy
		}
	}
	c.systemDisks()
	for i, g := range c.Roll.Gates {
		c.Roll.Gates[i].When = cmp.Or(g.When, "both")
		c.Roll.Gates[i].Timeout = cmp.Or(g.Timeout, Duration(10*time.Minute))
	}
	for _, list := range c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			list.hooks[i].Timeout = cmp.Or(h.Timeout, Duration(time.Minute))
		}
	}
	for i, e := range c.Proxmox.Endpoints {
		c.Proxmox.Endpoints[i] = strings.TrimRight(e, "/")
	}
	for i, w := range c.Notify {
		if w.On == nil {
			c.Notify[i].On = []string{"start", "failure", "end"}
		}
		c.Notify[i].ContentType = cmp.Or(w.ContentType, "application/json")
		c.Notify[i].CAFile = o.resolve(w.CAFile)
	}
	c.CacheDir = o.resolve(o.env("RECAST_CACHE_DIR"))
	c.Images.Factory = strings.TrimRight(c.Images.Factory, "/")
	c.Proxmox.Fingerprint = strings.ToUpper(c.Proxmox.Fingerprint)
	c.Proxmox.CAFile = o.resolve(c.Proxmox.CAFile)
	c.Images.CAFile = o.resolve(c.Images.CAFile)
	c.Images.SigningKey = o.resolve(c.Images.SigningKey)
	c.Talos.Config = o.resolve(c.Talos.Config)
	if m := &c.Talos.MachineConfigs; m.Given() {
		m.Path, m.Names = o.resolve(m.Dir), cmp.Or(m.Names, "{node}.yaml")
		m.Render.files(func(_ string, file *string) { *file = o.resolve(*file) })
	}
	c.Roll.EtcdSnapshot = o.resolve(cmp.Or(c.Roll.EtcdSnapshot, filepath.Join(".recast", "etcd")))
	for name, s := range c.Schematics {
		s.Path = o.resolve(s.File)
		c.Schematics[name] = s
	}
	if c.Talos.Config == "" {
		c.Talos.Config = o.env("TALOSCONFIG")
	}
	if home := o.env("HOME"); c.Talos.Config == "" && home != "" {
		c.Talos.Config = filepath.Join(home, ".talos", "config")
	}
}

// resolve makes a path relative to the file's directory; "" stays "".
func (o Options) resolve(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && o.env("HOME") != "" {
		return filepath.Join(o.env("HOME"), rest)
	}
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(o.Dir, path)
}

func (o Options) env(name string) string {
	if o.Getenv == nil {
		return ""
	}
	return o.Getenv(name)
}

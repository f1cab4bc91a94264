package factory

import (
	"path/filepath"
	"strings"
)

// isBehindAPrivateCA is another cluster's directory: its factory, the registry of extensions and that
// for installers have certificates of a private CA. The images exist already.
func (s *stage) isBehindAPrivateCA() {
	s.tell("Factory and registries with certificates of a private CA: nothing is asked of them until images.caFile names it")
	lab, mirror := s.dir, s.mirror
	defer func() { s.dir, s.mirror = lab, mirror }()
	s.dir, s.mirror = filepath.Join(lab, "private"), newDepot(s.t)
	ca := newAuthority(s.t)
	factory := s.server.startTLS(s.t, ca)
	registry := s.core.servesTLS(s.t, ca)
	config := strings.NewReplacer(
		s.front.url, factory.url, s.core.addr, registry, mirror.addr, s.mirror.servesTLS(s.t, ca),
		"  default: schematics/default.yaml\n", "", "schematic: default", "schematic: storage", "./talosconfig", "../talosconfig",
	).Replace(s.readFrom(lab, "recast.yaml"))
	trusting := strings.Replace(config, "images:\n", "images:\n  caFile: "+ca.file+"\n", 1)
	s.write("schematics/storage.yaml", s.readFrom(lab, "schematics/storage.yaml"))

	unknown := []string{"certificate signed by unknown authority", "hint: if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile", "runbook: recast runbook tls"}
	s.write("recast.yaml", config)
	said, _ := s.typed(1, "lock")
	s.says(said, append(unknown, "registry "+registry)...)
	s.write("recast.yaml", trusting)
	s.typed(0, "lock")
	s.write("recast.yaml", config)
	said, _ = s.typed(1, "publish", "--only", "build")
	s.says(said, append(unknown, "image factory "+factory.url)...)
	if e := s.lock().Schematics["storage"]; e.Installer != "" || e.ISO.SHA256 != "" {
		s.t.Fatalf("something was built: %+v", e)
	}
	s.write("recast.yaml", trusting)
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	s.typed(0, "publish")
	s.mirrored()
	factory.stop(s.t)
}

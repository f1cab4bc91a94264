package cri

import (
	"cmp"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
)

// spec is what the container's first process has to do. The API server is at that address.
func (c *container) spec(apiHost, apiPort string) (s jail.Spec, err error) {
	security := c.config.GetLinux().GetSecurityContext()
	s = jail.Spec{
		Root: filepath.Join(c.dir, "root"), Mounts: c.mounts(), EmptyDirs: c.image.EmptyDirs,
		ReadOnlyRoot: security.GetReadonlyRootfs(),
		Hostname:     c.sandbox.hostname(),
		Args:         c.args(), Env: c.env(apiHost, apiPort),
		Dir:             cmp.Or(c.config.WorkingDir, c.image.WorkingDir, "/"),
		NoNewPrivileges: security.GetNoNewPrivs(),
		Capabilities:    jail.AllCapabilities(),
	}
	if len(s.Args) == 0 {
		return s, errors.New("no command specified")
	}
	if !security.GetPrivileged() {
		s.Capabilities = jail.Capabilities(security.GetCapabilities().GetAddCapabilities(), security.GetCapabilities().GetDropCapabilities())
		s.MaskedPaths, s.ReadOnlyPaths = security.GetMaskedPaths(), security.GetReadonlyPaths()
	}
	uid, gid, err := c.image.user()
	if err != nil {
		return s, err
	}
	if given := security.GetRunAsUser(); given != nil {
		if given.Value != uid {
			gid = 0 // that of the image is of the image's user
		}
		uid = given.Value
	}
	if given := security.GetRunAsGroup(); given != nil {
		gid = given.Value
	}
	s.UID, s.GID = int(uid), int(gid)
	s.Groups = []int{s.GID}
	for _, group := range security.GetSupplementalGroups() {
		s.Groups = append(s.Groups, int(group))
	}
	return s, nil
}

// args is the command line; a container's command replaces all that its image says.
func (c *container) args() []string {
	switch {
	case len(c.config.Command) > 0:
		return slices.Concat(c.config.Command, c.config.Args)
	case len(c.config.Args) > 0:
		return slices.Concat(c.image.Entrypoint, c.config.Args)
	}
	return slices.Concat(c.image.Entrypoint, c.image.Cmd)
}

// env is the environment: the image's, then what the kubelet says.
func (c *container) env(apiHost, apiPort string) []string {
	vars := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "HOSTNAME": c.sandbox.hostname(),
	}
	for _, v := range c.image.Env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	for _, v := range c.config.Envs {
		vars[v.Key] = string(v.Value)
	}
	if _, ok := vars["KUBERNETES_SERVICE_HOST"]; ok {
		vars["KUBERNETES_SERVICE_HOST"] = apiHost
		vars["KUBERNETES_SERVICE_PORT"], vars["KUBERNETES_SERVICE_PORT_HTTPS"] = apiPort, apiPort
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		list = append(list, name+"="+vars[name])
	}
	return list
}

// mounts are the image's files, then what every container has, then the pod's volumes:
// those that are mounted in others after those.
func (c *container) mounts() (all []jail.Mount) {
	for _, target := range slices.Sorted(maps.Keys(c.image.Files)) {
		all = append(all, jail.Mount{Source: c.image.Files[target], Target: target, ReadOnly: true})
	}
	readOnly := c.config.GetLinux().GetSecurityContext().GetReadonlyRootfs()
	all = append(all,
		jail.Mount{Source: c.sandbox.resolvConf(), Target: "/etc/resolv.conf", ReadOnly: readOnly},
		jail.Mount{Source: c.sandbox.hostnameFile(), Target: "/etc/hostname", ReadOnly: readOnly})
	volumes := slices.SortedStableFunc(slices.Values(c.config.Mounts), func(a, b *runtimeapi.Mount) int {
		return strings.Count(filepath.Clean(a.ContainerPath), "/") - strings.Count(filepath.Clean(b.ContainerPath), "/")
	})
	for _, m := range volumes {
		all = append(all, jail.Mount{Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.Readonly})
	}
	return all
}

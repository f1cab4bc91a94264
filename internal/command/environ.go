package command

import (
	"slices"
	"strings"
)

// passed are the variables that every program gets: paths, user, locale, terminal, network
// and cluster access. Others are withheld, because many are secret: tokens of Proxmox and
// registries, webhook URLs, headers of a telemetry collector.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE",
	"TERM", "COLORTERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"KUBECONFIG", "TALOSCONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
}

// passedPrefixes are the prefixes of further passed variables.
var passedPrefixes = []string{"LC_", "XDG_", "RECAST_"}

// ProxmoxToken is never passed on, not even if named.
const ProxmoxToken = "PROXMOX_VE_API_TOKEN"

// Environ is the part of env that a program gets: the variables above and those named in
// more, which may end in "*".
func Environ(env, more []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == ProxmoxToken || !allowed(name, more)
	})
}

func allowed(name string, more []string) bool {
	for _, prefix := range passedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains(passed, name) || slices.ContainsFunc(more, func(m string) bool {
		prefix, family := strings.CutSuffix(m, "*")
		return m == name || family && strings.HasPrefix(name, prefix)
	})
}

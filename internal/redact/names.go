package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// secretKey matches the names of fields whose values are always secret.
var secretKey = regexp.MustCompile(`(?i)^(?:auth|.*-(?:key-data|data)|.*(?:token|secret|password|passwd|passphrase|credentials?)` +
	`|.*(?:api|access|auth|private|shared|signing|encryption|secret)[_-]?key|clusterid)$`)

// longKey matches fields whose long values are secret: a short value is no key.
var longKey = regexp.MustCompile(`(?i)^(?:key|crt)$`)

const longValue = 40

// labels match the parents of fields called key that name labels and the like.
var labels = regexp.MustCompile(`(?i)^(?:(?:registerWith)?taints|tolerations|match(?:Label)?Expressions|matchFields|items)$`)

// Named says whether the field at path, with that value, is secret by its name. path is
// the keys from the top, without list indices. It covers at least what Talos' own
// RedactSecrets does (machinery, config/container/container.go).
func Named(path []string, value string) bool {
	if len(path) == 0 {
		return false
	}
	last := path[len(path)-1]
	switch {
	case secretKey.MatchString(last):
		return true
	case longKey.MatchString(last) && len(value) >= longValue:
		return true
	case strings.EqualFold(last, "key"):
		return !slices.ContainsFunc(path, labels.MatchString)
	case len(path) == 2 && path[0] == "cluster" && last == "id": // whoever knows it can ask the discovery service for the members
		return true
	}
	return false
}

// foreign matches fields with other programs' texts, which may contain secrets anywhere:
// files, manifests, environments, request headers, SideroLink's URL with its token.
var foreign = regexp.MustCompile(`(?i)^(?:contents?|manifest|data|stringData|headers|extraManifestHeaders|env|environment|variables|apiUrl)$`)

// proxies matches the environment variables that stay visible.
var proxies = regexp.MustCompile(`(?i)^(?:https?|no|all)_proxy$`)

// Foreign says whether the field at path holds another program's text, of which any part
// may be secret.
func Foreign(path []string) bool {
	if !slices.ContainsFunc(path, foreign.MatchString) {
		return false
	}
	last := path[len(path)-1]
	return last != "name" && !proxies.MatchString(last)
}

// Variable splits a "NAME=value" entry of an environment list. The name is not secret.
func Variable(path []string, text string) (name, value string, ok bool) {
	if len(path) == 0 || !slices.Contains([]string{"env", "environment"}, path[len(path)-1]) {
		return "", "", false
	}
	return strings.Cut(text, "=")
}

// KernelArg returns a kernel argument as it may be shown, and the name if its value is secret.
func KernelArg(arg string) (shown, secret string) {
	arg = strings.Trim(arg, `"`)
	name, value, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
	if value == "" || !secretArg(name, arg, value) {
		return arg, ""
	}
	return strings.TrimSuffix(arg, value) + Mark, name
}

var (
	userInURL       = regexp.MustCompile(`://[^/?#]*@`)
	secretParameter = regexp.MustCompile(`(?i)(secret|passw(or)?d|passphrase|token|(api|access|private)[_-]?key)=[^&]`)
	// filledIn matches a value that Talos fills in when it requests its configuration (download/url.go).
	filledIn = regexp.MustCompile(`^(\$\{\w+\})?$`)
)

func secretArg(name, arg, value string) bool {
	switch {
	case name == "talos.config.inline", name == "talos.config.early": // the configuration itself
		return true
	case userInURL.MatchString(value), secretParameter.MatchString(arg):
		return true
	case name != "talos.config":
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return true
	}
	for _, values := range u.Query() { // such as those of a signed URL
		if slices.ContainsFunc(values, func(v string) bool { return !filledIn.MatchString(v) }) {
			return true
		}
	}
	return false
}

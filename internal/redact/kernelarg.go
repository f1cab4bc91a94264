package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

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

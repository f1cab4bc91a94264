package config

// unserved looks up a key or value that recast knows but this version does
// not serve, and says what to do instead. In a path, [] stands for any index
// and * for any name; "=value" after a path means that value only.
func unserved(path string) (string, bool) {
	advice, ok := map[string]string{
		"roll.hooks": "remove it",
	}[path]
	return "not served by this version of recast: " + advice, ok
}

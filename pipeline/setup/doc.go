// Package setup is recast init: it looks at a running cluster and drafts recast.yaml and the
// schematics from what it finds. [Init] does all of it; [InitOptions] is what a person may say.
package setup

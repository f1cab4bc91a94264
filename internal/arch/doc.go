// Package arch has only tests. They check the structure of all other packages: imports,
// sizes of functions and files, and forbidden constructs.
package arch

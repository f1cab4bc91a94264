// Package arch holds no code: its tests keep the shape of all other packages,
// who imports whom, how long a function may be, and what none may do.
package arch

-- leave: a claimer ends; whoever else is idle takes over what it would have woken for.
-- KEYS: bell watch own
-- ARGV: claimer
-- RETURNS: 1 if the claimer had a moment to wake for, else 0
-- RULES: 5, 7
-- @flags allow-oom
local bell, watch, own = KEYS[1], KEYS[2], KEYS[3]
local claimer = ARGV[1]
-- @include clock ring

call('DEL', own)
local left = call('ZREM', watch, claimer)
if left == 1 then
  ring(bell)
end
return left

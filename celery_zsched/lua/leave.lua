-- leave: a claimer ends; whoever else is idle takes over what it would have woken for.
-- KEYS: bell watch own
-- ARGV: claimer, armed ('1': it had a pop outstanding, which may have taken a ring along)
-- RETURNS: 1 if the claimer had a moment to wake for, else 0
-- RULES: 5, 7
-- @flags allow-oom
local bell, watch, own = KEYS[1], KEYS[2], KEYS[3]
local claimer, armed = ARGV[1], ARGV[2] == '1'
-- @include clock ring

call('DEL', own)
local left = call('ZREM', watch, claimer)
if left == 1 or armed then
  ring(bell)
end
return left

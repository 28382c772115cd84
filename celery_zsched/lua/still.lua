-- still: let a queue stand still for a time, or for longer, while what was parked in it is put back; or let it go on.
-- KEYS: bell watch rules
-- ARGV: token (of who puts back), microseconds ('0': he has ended, and as far as he is concerned it goes on)
-- RETURNS: until when it stands still (0: no longer)
-- RULES: 2, 5, 7
-- @flags allow-oom
local bell, watch, rules = KEYS[1], KEYS[2], KEYS[3]
local token, lasting = ARGV[1], tonumber(ARGV[2])
-- @include clock ring life still

local left = {}
for other, ends in string.gmatch(call('HGET', rules, 'still') or '', '(%S+) (%d+)') do
  if other ~= token and tonumber(ends) > now then
    left[#left + 1] = other .. ' ' .. ends
  end
end
if lasting > 0 and life_of(rules) then -- a queue that is gone stays gone
  left[#left + 1] = token .. ' ' .. stamp(now + lasting)
end
if #left > 0 then
  call('HSET', rules, 'still', table.concat(left, ' '))
else
  call('HDEL', rules, 'still')
end
if lasting == 0 then
  ring(bell)
end
live_as_before(rules)
return stamp(still_until(table.concat(left, ' ')))
